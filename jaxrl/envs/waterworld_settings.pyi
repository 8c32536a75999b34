from envs.waterworld_settings import *
from ...envs.waterworld_settings import *
