from envs.waterworld import *
