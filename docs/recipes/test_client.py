"""unittest, with the standard library: python -m unittest test_client"""

import unittest

from forgelet.testing.api import ApiError
from forgelet.testing.namespaces import new_project, new_user
from forgelet.testing.starting import running


def setUpModule() -> None:
    global forgelet
    forgelet = unittest.enterModuleContext(running("--no-edge"))  # ends with the module, or with this process


class Projects(unittest.TestCase):
    def setUp(self) -> None:
        forgelet.reset()

    def test_a_project_is_made(self) -> None:
        forgelet.api.post("projects", {"name": "hello"})
        self.assertEqual([found["path"] for found in forgelet.api.get("projects")], ["hello"])

    def test_the_one_of_another_test_is_not_there(self) -> None:
        self.assertEqual(forgelet.api.get("projects"), [])

    def test_nobody_else_sees_it(self) -> None:
        project, stranger = new_project(new_user(forgelet)), new_user(forgelet)
        with self.assertRaises(ApiError) as refused:
            stranger.api.get(f"projects/{project.id}")
        self.assertEqual(refused.exception.status, 404)


if __name__ == "__main__":
    unittest.main()
