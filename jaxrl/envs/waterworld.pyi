from envs.waterworld import *
from ...envs.waterworld import *
