from envs.networks.ray_network import *
from ....envs.networks.ray_network import *
