"""Tasks of Celery and actors of dramatiq as handlers. The real ones are run by tests/rabbit/guide.py."""

from __future__ import annotations

import functools
import unittest
from types import SimpleNamespace

from tidegate import App, celery, dramatiq


class Greeting:
    """As a bound task of Celery's: `run` is a method."""

    def run(self, name: str) -> str:
        return f"hello {name}"


class Registering(unittest.TestCase):
    def test_a_bound_method_is_a_handler(self) -> None:
        app, greeting = App(), Greeting()
        self.assertEqual(app.task(name="greet")(greeting.run), greeting.run)
        self.assertEqual(app.get("greet").function("Ada"), "hello Ada")

    def test_a_function_of_c_is_a_handler(self) -> None:
        app = App()
        app.task(name="length")(len)
        self.assertEqual(app.get("length").function("Ada"), 3)


class Celery(unittest.TestCase):
    def test_all_tasks_are_registered_but_the_placeholders_of_the_canvas(self) -> None:
        names = ["shop.greet", "celery.starmap", "celery.chord_unlock", "celery.chain"]
        app = App()
        celery.register(SimpleNamespace(tasks={name: Greeting() for name in names}), app)
        self.assertEqual(sorted(app), ["celery.starmap", "shop.greet"])


class Dramatiq(unittest.TestCase):
    def test_a_coroutine_function_is_taken_out_of_dramatiqs_wrapper_and_of_no_other(self) -> None:
        async def fetch() -> str:
            return "fetched"

        # As dramatiq.asyncio.async_to_sync makes it.
        wrapper = eval("lambda: None", {"__name__": "dramatiq.asyncio"})
        functools.update_wrapper(wrapper, fetch)

        @functools.wraps(fetch)
        def decorated() -> str:
            return "decorated"

        actors = {"fetch": SimpleNamespace(fn=wrapper), "decorated": SimpleNamespace(fn=decorated)}
        app = App()
        dramatiq.register(SimpleNamespace(actors=actors), app)
        self.assertIs(app.get("fetch").function, fetch)
        self.assertTrue(app.get("fetch").is_async)
        self.assertIs(app.get("decorated").function, decorated)


if __name__ == "__main__":
    unittest.main()
