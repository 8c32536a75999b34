from envs.arena import *
