from envs.pursuit import *
from ...envs.pursuit import *
