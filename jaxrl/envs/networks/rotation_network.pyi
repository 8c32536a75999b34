from envs.networks.rotation_network import *
from ....envs.networks.rotation_network import *
