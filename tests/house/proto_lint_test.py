"""Plants one breach at a time in a clean proto and sees that proto_lint reports it, and nothing else."""

import pathlib
import tempfile
import unittest

import proto_lint

COMMON = 'syntax = "proto3";\npackage house.v1;\nmessage Handle { string id = 1; }\n'
CLEAN = """// A clean service.
syntax = "proto3";
package house.v1;
import "house/v1/common.proto";
import "google/protobuf/any.proto";
option cc_enable_arenas = true;

service DoorService {
  rpc OpenDoor(OpenDoorRequest) returns (OpenDoorResponse);
  rpc WatchDoor(stream WatchDoorRequest) returns (stream WatchDoorResponse) {}
}

enum LockState { /* one */ LOCK_STATE_UNSPECIFIED = 0; LOCK_STATE_OPEN = 1; }

message OpenDoorRequest {
  reserved 7;
  Handle handle = 1;
  map<string, LockState> locks_by_name = 2;
  oneof how { bytes key = 3; string code_word = 4 [deprecated = true]; }
  message Hinge { optional int32 size_mm = 1; }
  repeated Hinge hinges = 5;
}
message OpenDoorResponse { google.protobuf.Any note = 1; }
message WatchDoorRequest {}
message WatchDoorResponse {}
"""

# (text of CLEAN, what it becomes, part of the one breach expected)
BREACHES = [
    ('syntax = "proto3";', 'syntax = "proto2";', "syntax is not proto3"),
    ('syntax = "proto3";', "", "syntax is not proto3"),
    ("package house.v1;", "", "package is missing"),
    ("package house.v1;", "package house.v2;", "does not match the folder"),
    ("import \"house", "import public \"house", "import is public"),
    ("Handle handle = 1;", "", "import house/v1/common.proto is not used"),
    ("google.protobuf.Any note", "string note", "import google/protobuf/any.proto is not used"),
    ("LOCK_STATE_UNSPECIFIED = 0", "LOCK_STATE_NONE = 0", "not LOCK_STATE_UNSPECIFIED"),
    ("LOCK_STATE_UNSPECIFIED = 0", "LOCK_STATE_UNSPECIFIED = 2", "does not begin with value 0"),
    ("LOCK_STATE_OPEN", "LOCK_STATE_Open", "LOCK_STATE_Open is not in the right case"),
    ("LOCK_STATE_OPEN", "OPEN", "OPEN does not begin with LOCK_STATE_"),
    ("/* one */", "option allow_alias = true;", "allows aliases"),
    ("service DoorService", "service Door", "Door does not end in Service"),
    ("rpc OpenDoor(OpenDoorRequest)", "rpc OpenDoor(WatchDoorResponse)", "not OpenDoorRequest"),
    ("locks_by_name", "locksByName", "field locksByName is not in the right case"),
    ("code_word", "CodeWord", "field CodeWord is not in the right case"),
    ("oneof how", "oneof How", "oneof How is not in the right case"),
    ("size_mm", "sizeMm", "field sizeMm is not in the right case"),
    ("Hinge", "hinge_", "message hinge_ is not in the right case"),
]


def lint(text, name="house/v1/door_service.proto"):
    with tempfile.TemporaryDirectory() as root:
        for file, content in (("house/v1/common.proto", COMMON), (name, text)):
            path = pathlib.Path(root, file)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
        return proto_lint.lint(root)[0]


class ProtoLintTest(unittest.TestCase):
    def test_clean(self):
        self.assertEqual(lint(CLEAN), [])

    def test_every_breach_is_reported(self):
        for old, new, expected in BREACHES:
            with self.subTest(expected):
                self.assertIn(old, CLEAN)
                found = lint(CLEAN.replace(old, new))
                self.assertTrue(any(expected in text for text in found), found)

    def test_a_message_serves_one_rpc(self):
        found = lint(CLEAN.replace("(stream WatchDoorRequest)", "(OpenDoorRequest)"))
        self.assertTrue(any("OpenDoorRequest serves more than one rpc" in text for text in found), found)

    def test_file_name(self):
        self.assertTrue(any("file name" in text for text in lint(CLEAN, "house/v1/Door.proto")))

    def test_torn_file(self):
        self.assertTrue(any("cannot be read" in text for text in lint(CLEAN[:-40])))

    def test_enum_prefix(self):
        for name, expected in (("DType", "D_TYPE"), ("KvStore", "KV_STORE"), ("GQAReduce", "GQA_REDUCE"), ("Path", "PATH")):
            self.assertEqual(proto_lint.upper_snake(name), expected)


if __name__ == "__main__":
    unittest.main()
