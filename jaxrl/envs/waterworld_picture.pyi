from envs.waterworld_picture import *
from ...envs.waterworld_picture import *
