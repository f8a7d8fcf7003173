"""Templates: compiled once, in a thread, when a page is first asked for."""

import asyncio
import threading

import jinja2

from api_server.pages.page import Templates


async def test_templates_are_compiled_in_a_thread_for_the_first_page_and_once_for_all() -> None:
    threads: list[threading.Thread] = []

    class Loader(jinja2.DictLoader):
        def get_source(self, environment: jinja2.Environment, template: str):
            threads.append(threading.current_thread())
            return super().get_source(environment, template)

    sources = dict.fromkeys(("one.html", "two.html", "mail.txt"), "<p>{{ text }}</p>")
    templates = Templates(jinja2.Environment(loader=Loader(sources)))
    assert threads == []
    first = asyncio.create_task(templates.compiled())
    await asyncio.sleep(0)
    first.cancel()  # its visitor has gone; others wait for the same
    await asyncio.gather(templates.compiled(), templates.compiled())
    await templates.compiled()
    assert len(threads) == 2
    assert threading.main_thread() not in threads
