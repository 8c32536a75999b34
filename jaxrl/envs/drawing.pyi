from envs.drawing import *
