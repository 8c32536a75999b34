from envs.waterworld_picture import *
