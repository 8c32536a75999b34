from envs.cartpole import *
