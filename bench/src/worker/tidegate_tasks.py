"""The handlers of tidegate's process mode."""

import asyncio

from tidegate import task


@task(name="nothing")
def nothing(*args, **kwargs):
    pass


@task(name="pause")
async def pause(*args, **kwargs):
    await asyncio.sleep(0.005)
