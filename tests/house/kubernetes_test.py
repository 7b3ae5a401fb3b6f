"""deploy/kubernetes against Kubernetes' own schema, against itself, and against the server that it starts.

SEINED names the server. Needs kubernetes-validate from PyPI.
"""

import os
import pathlib
import re
import subprocess

import kubernetes_validate
import pytest
import yaml

FOLDER = pathlib.Path(__file__).parents[2] / "deploy" / "kubernetes"
DOCUMENTS = [d for path in sorted(FOLDER.glob("*.yaml")) for d in yaml.safe_load_all(path.read_text())]
BY_KIND = {d["kind"]: d for d in DOCUMENTS}
SET = BY_KIND["StatefulSet"]["spec"]
POD = SET["template"]["spec"]
SEINED = POD["containers"][0]
SETTINGS = yaml.safe_load(BY_KIND["ConfigMap"]["data"]["seined.yaml"])


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda d: d["kind"])
def test_schema_of_kubernetes(document):
    kubernetes_validate.validate(document, "1.30", strict=True)


def test_a_misspelt_key_is_found():
    wrong = {**BY_KIND["Service"], "spec": {**BY_KIND["Service"]["spec"], "clusterIp": "None"}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, "1.30", strict=True)


def test_selectors_find_the_pods():
    labels = SET["template"]["metadata"]["labels"]
    assert SET["selector"]["matchLabels"] == labels
    assert BY_KIND["Service"]["spec"]["selector"] == labels
    assert BY_KIND["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels
    assert SET["serviceName"] == BY_KIND["Service"]["metadata"]["name"]


def test_volumes_are_there_and_the_socket_lies_in_a_shared_one():
    names = {volume["name"] for volume in POD["volumes"]}
    folder = os.path.dirname(SETTINGS["server"]["listen"].removeprefix("unix:"))
    for container in POD["containers"]:
        mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
        assert set(mounts.values()) <= names
        assert mounts[folder] == "run"
    assert POD["volumes"][1]["configMap"]["name"] == BY_KIND["ConfigMap"]["metadata"]["name"]


def test_the_server_has_time_to_drain_and_memory_for_its_limit():
    server = SETTINGS["server"]
    pre_stop = int(re.search(r"timeout (\d+) ", SEINED["lifecycle"]["preStop"]["exec"]["command"][2])[1])
    assert POD["terminationGracePeriodSeconds"] > pre_stop + server["drain_delay"] + server["grace"] + 1
    gib = {key: int(re.fullmatch(r"(\d+)Gi", SEINED["resources"][key]["memory"])[1]) for key in ("requests", "limits")}
    assert gib["requests"] == gib["limits"] >= int(server["memory_limit"].removesuffix("GiB")) * 1.1 + 0.5


def test_the_server_takes_these_settings(tmp_path):
    config = tmp_path / "seined.yaml"
    config.write_text(BY_KIND["ConfigMap"]["data"]["seined.yaml"])
    checked = subprocess.run([os.environ["SEINED"], "--config", config, "--check-config"], capture_output=True, text=True)
    assert (checked.returncode, checked.stderr) == (0, "")
    assert yaml.safe_load(checked.stdout)["server"]["watchdog"] == SETTINGS["server"]["watchdog"]


def test_what_runs_is_confined():
    assert POD["securityContext"]["runAsNonRoot"] and not POD["automountServiceAccountToken"]
    for container in POD["containers"]:
        context = container["securityContext"]
        assert context["readOnlyRootFilesystem"] and not context["allowPrivilegeEscalation"]
        assert context["capabilities"] == {"drop": ["ALL"]}
