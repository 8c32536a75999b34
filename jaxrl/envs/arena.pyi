from envs.arena import *
from ...envs.arena import *
