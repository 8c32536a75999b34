from envs.waterworld_settings import *
