from envs.cartpole import *
from ...envs.cartpole import *
