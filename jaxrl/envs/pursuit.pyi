from envs.pursuit import *
