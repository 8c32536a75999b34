"""Waterworld in plain NumPy, f64, body by body and ray by ray: slow, to test the fast one.

Written only from the rules. Nothing here is random: the places of respawns are an argument of
`step`.
Bodies are in the order pursuers, evaders (food), poisons; vectors are rows.
"""

import numpy as np

SIZE = 750.0
SLOP = float(np.float32(0.1))
BIAS = float(np.float32(0.9)) ** 60
DEFAULTS = {
    "n_pursuers": 2, "n_evaders": 5, "n_poisons": 10, "n_obstacles": 1, "n_coop": 1,
    "n_sensors": 30, "sensor_range": 0.2, "radius": 0.015, "obstacle_radius": 0.1,
    "obstacle_coord": ((0.5, 0.5),),
    "pursuer_max_accel": 0.5, "pursuer_speed": 0.2, "evader_speed": 0.1, "poison_speed": 0.1,
    "poison_reward": -1.0, "food_reward": 10.0, "encounter_reward": 0.01, "thrust_penalty": -0.5,
    "local_ratio": 1.0, "speed_features": True, "max_cycles": 500, "FPS": 15,
}  # fmt: skip


class PlainWaterworld:
    """One pool. The state is the attributes from `position` on; a test sets them before `step`.

    Attributes:
        position, velocity, correction: f64[N, 2], px and px/s.
        counter: the counters of the foods. touched_food, touched_poison: bool[P, F], bool[P, Q].
        obstacles: f64[K, 2], px. time: steps since the reset.
        margin: after a step or an `observe`, the least distance of any decision from its threshold,
            in px: a test in single precision may skip a state in which it is tiny.
    """

    def __init__(self, **settings):
        self.settings = {**DEFAULTS, **settings}
        for name, value in self.settings.items():
            setattr(self, name, value)
        self.num_bodies = self.n_pursuers + self.n_evaders + self.n_poisons
        sizes = [1.0] * self.n_pursuers + [2.0] * self.n_evaders + [0.75] * self.n_poisons
        self.radii = [size * self.radius * SIZE for size in sizes]
        self.position = np.zeros((self.num_bodies, 2))
        self.velocity = np.zeros((self.num_bodies, 2))
        self.correction = np.zeros((self.num_bodies, 2))
        self.counter = [0] * self.n_evaders
        self.touched_food = np.zeros((self.n_pursuers, self.n_evaders), bool)
        self.touched_poison = np.zeros((self.n_pursuers, self.n_poisons), bool)
        self.obstacles = (
            np.array(self.obstacle_coord or [(0.5, 0.5)] * self.n_obstacles, float) * SIZE
        )
        self.time = 0
        self.margin = np.inf
        self.poison_count = [0] * self.n_pursuers

    def step(self, action, places):
        """One step; places f64[N, 4] are (x, y, vx, vy) of the bodies that respawn in it.

        Returns:
            (observations [P, ...], rewards [P], contacts bool[N, 4 + K] with the walls bottom,
            right, top and left and the obstacles, truncated).
        """
        self.margin = np.inf
        penalties = [self.push(i, action[i]) for i in range(self.n_pursuers)]
        self.position = self.position + (self.velocity + self.correction) / self.FPS
        before = self.position.copy()
        paid, num_caught = self.meet(places)
        contacts = self.answer_contacts(before)
        self.time += 1
        self.num_caught = num_caught
        rewards = self.rewards(penalties, paid)
        return self.observe(), rewards, contacts, self.time >= self.max_cycles

    def push(self, i, action):
        """Changes a pursuer's velocity; returns the penalty."""
        push = np.clip(np.asarray(action, float), -1, 1) * self.pursuer_max_accel
        length = np.linalg.norm(push)
        if length > self.pursuer_max_accel:
            push = push * (self.pursuer_max_accel / length)
        limit = self.pursuer_speed * SIZE
        self.velocity[i] = np.clip(self.velocity[i] + push * SIZE, -limit, limit)
        return self.thrust_penalty * np.linalg.norm(push)

    def meet(self, places):
        """Touches of food and poison, begins first: (whether each pursuer is paid, catches)."""
        paid, num_caught = [False] * self.n_pursuers, 0
        self.poison_count = [0] * self.n_pursuers
        now_food, now_poison = np.zeros_like(self.touched_food), np.zeros_like(self.touched_poison)
        for i in range(self.n_pursuers):
            for j in range(self.n_evaders):
                now_food[i, j] = self.overlap(i, self.n_pursuers + j)
            for j in range(self.n_poisons):
                now_poison[i, j] = self.overlap(i, self.n_pursuers + self.n_evaders + j)
        for i in range(self.n_pursuers):
            for j in range(self.n_evaders):
                if now_food[i, j] and not self.touched_food[i, j]:
                    self.counter[j] += 1
                    if self.counter[j] >= self.n_coop:
                        paid[i] = True
                        num_caught += 1
            for j in range(self.n_poisons):
                if now_poison[i, j] and not self.touched_poison[i, j]:
                    self.poison_count[i] += 1
                    self.relocate(self.n_pursuers + self.n_evaders + j, places)
        for i in range(self.n_pursuers):
            for j in range(self.n_evaders):
                if self.touched_food[i, j] and not now_food[i, j]:
                    if self.counter[j] < self.n_coop:
                        self.counter[j] -= 1
                    else:
                        self.counter[j] = 0
                        paid[i] = True
                        self.relocate(self.n_pursuers + j, places)
        self.touched_food, self.touched_poison = now_food, now_poison
        return paid, num_caught

    def overlap(self, i, body):
        distance = np.linalg.norm(self.position[i] - self.position[body])
        reach = self.radii[i] + self.radii[body]
        self.margin = min(self.margin, abs(distance - reach))
        return distance < reach

    def relocate(self, body, places):
        self.position[body], self.velocity[body] = places[body][:2], places[body][2:]

    def answer_contacts(self, before):
        """Bounces off walls and obstacles that overlap the positions `before` any respawn."""
        contacts = np.zeros((self.num_bodies, 4 + len(self.obstacles)), bool)
        keep = 1 - BIAS ** (1 / self.FPS)
        for body in range(self.num_bodies):
            x, y = before[body]
            radius = self.radii[body]
            walls = [(y, (0, -1)), (SIZE - x, (1, 0)), (SIZE - y, (0, 1)), (x, (-1, 0))]
            statics = []
            for depth, normal in walls:
                if depth < -100:  # beyond the wall's middle line it pushes outwards
                    statics.append((-200 - depth - radius, -np.array(normal, float), 0.999))
                else:
                    statics.append((depth - radius, np.array(normal, float), 0.999))
            for centre in self.obstacles:
                away = centre - before[body]
                distance = np.linalg.norm(away)
                normal = away / distance if distance > 0 else np.array([1.0, 0.0])
                statics.append((distance - radius - 75.0, normal, 1.0))
            velocity, correction = self.velocity[body].copy(), np.zeros(2)
            for k, (gap, normal, elasticity) in enumerate(statics):
                self.margin = min(self.margin, abs(gap))
                if gap < 0:
                    contacts[body, k] = True
                    velocity -= (1 + elasticity) * max(self.velocity[body] @ normal, 0.0) * normal
                    gap -= (self.position[body] - before[body]) @ normal
                    correction -= normal * keep * max(0.0, -(gap + SLOP)) * self.FPS
            self.velocity[body], self.correction[body] = velocity, correction
        return contacts

    def rewards(self, penalties, paid):
        """The rewards: controls of all agents, and the behaviour with the last control again."""
        count = self.n_pursuers
        share = self.local_ratio
        controls = []
        for k, penalty in enumerate(penalties):
            control = np.full(count, penalty / count * (1 - share))
            control[k] += penalty * share
            controls.append(control)
        local = np.array([
            self.food_reward * paid[i]
            + self.encounter_reward * self.touched_food[i].sum()
            + self.poison_reward * self.poison_count[i]
            for i in range(count)
        ]) + controls[-1]  # fmt: skip
        return sum(controls) + local * share + local.mean() * (1 - share)

    def observe(self):
        rows = [self.observe_pursuer(i) for i in range(self.n_pursuers)]
        return np.array(rows)

    def observe_pursuer(self, i):
        first_food, first_poison = self.n_pursuers, self.n_pursuers + self.n_evaders
        top = self.pursuer_speed
        obstacles = [
            (centre, self.velocity[i], self.obstacle_radius * SIZE) for centre in self.obstacles
        ]
        other = [
            (self.position[j], self.velocity[j], self.radii[j]) for j in range(self.num_bodies)
        ]
        obstacle, _ = self.sense(i, obstacles, 1.0)
        food = self.sense(i, other[first_food:first_poison], self.evader_speed + top)
        poison = self.sense(i, other[first_poison:], self.poison_speed + top)
        others = [other[j] for j in range(self.n_pursuers) if j != i]
        pursuer = (
            self.sense(i, others, 2 * top)
            if others
            else (np.zeros(self.n_sensors), np.zeros(self.n_sensors))
        )
        flags = [float(self.touched_food[i].any()), float(self.poison_count[i] >= 1)]
        blocks = [obstacle, self.sense_walls(i)]
        for distance, speed in (food, poison, pursuer):
            blocks += [distance, speed] if self.speed_features else [distance]
        return np.concatenate([*blocks, flags])

    def rays(self):
        for k in range(self.n_sensors):
            angle = 2 * np.pi * k / self.n_sensors
            yield np.array([np.cos(angle), np.sin(angle)])

    def sense(self, i, objects, top_speed):
        """(distances, speeds) [n_sensors] of the nearest of the (position, velocity, radius)."""
        reach = self.sensor_range * SIZE
        distances, speeds = [], []
        for ray in self.rays():
            readings = []
            for position, velocity, radius in objects:
                offset = position - self.position[i]
                along = ray @ offset
                aside = offset @ offset - along**2
                margins = [self.margin]
                if aside <= (radius + 1) ** 2:
                    margins += [abs(along - radius - reach), abs(along - reach)]
                    margins += [abs(along)] if along < reach else []
                if -1 < along < reach + radius + 1:
                    margins.append(abs(np.sqrt(max(aside, 0.0)) - radius))
                self.margin = min(margins)
                if along < 0 or along - radius > reach or aside > radius**2:
                    readings.append((1.0, 0.0))
                else:
                    speed = ray @ (velocity - self.velocity[i]) / (top_speed * SIZE)
                    readings.append((float(np.clip(along / reach, 0, 1)), speed))
            near = sorted(distance for distance, _ in readings)
            if len(near) > 1 and near[0] < 1:
                self.margin = min(self.margin, (near[1] - near[0]) * reach)
            least = min(range(len(readings)), key=lambda k: readings[k][0])  # the first one on ties
            distances.append(readings[least][0])
            speeds.append(readings[least][1])
        return np.array(distances), np.array(speeds)

    def sense_walls(self, i):
        reach = self.sensor_range * SIZE
        shares = []
        for ray in self.rays():
            share = 1.0
            for axis in (0, 1):
                length = reach * ray[axis]
                if abs(length) > 1e-8:
                    end = np.clip(self.position[i, axis] + length, 0, SIZE)
                    share = min(share, (end - self.position[i, axis]) / length)
            self.margin = min(self.margin, abs(share - (1 - 1e-4)) * reach)
            shares.append(1.0 if share >= 1 - 1e-4 else share)
        return np.array(shares)
