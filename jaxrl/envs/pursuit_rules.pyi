from envs.pursuit_rules import *
from ...envs.pursuit_rules import *
