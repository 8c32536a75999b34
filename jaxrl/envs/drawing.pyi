from envs.drawing import *
from ...envs.drawing import *
