"""Agent Lightning's own client and rollout managers against a controller of ours.

Usage: agl-manager.py SCENARIO BASE_URL KEY MODEL_ENDPOINT. Prints one JSON object as its last line.
"""

import asyncio
import json
import sys
import time

from agentlightning.client import AgentLightningAsyncClient, AgentLightningSyncClient
from agentlightning.hooks import RolloutHooks
from agentlightning.schemas import Event, Rollout
from agentlightning.verl.agl_rollout_manager import AglAsyncRolloutManager, AglRolloutManager


class NoteHooks(RolloutHooks):
    """Counts, and posts an event of its own as trainers' hooks do."""

    def __init__(self):
        self.succeeded = []
        self.failed = []

    def on_succeeded(self, rollout, events, store):
        self.succeeded.append(sorted(events))
        attempt = rollout.status.last_attempt_id
        store.add_event(rollout.rollout_id, attempt, "hook_note", {"seen": len(events[attempt])})

    def on_failed(self, rollout, store):
        self.failed.append(rollout.status.error_message)


def manager(kind, base_url, key, step, n=1, hooks=None, timeout=120):
    return kind(
        agl_base_url=base_url,
        agl_key=key,
        model="policy",
        step=step,
        train_rollout_n=n,
        rollout_timeout_seconds=timeout,
        poll_interval_seconds=0.1,
        hooks=hooks,
        local_agent_class="agents.calculator.Agent",
        local_env_map={"QUESTION": "input.question", "PLAN": "input.plan", "FIRST": "input.list.0"},
    )


def tasks(plans):
    return {
        "question": [f"what is {i}?" for i in range(len(plans))],
        "plan": plans,
        "list": [[i, "x"] for i in range(len(plans))],
    }


def completed_view(done):
    return {
        "state": done.rollout_state.value,
        "plan": done.input["plan"],
        "reward": done.final_reward,
        "error": done.error_message,
        "triplets": [
            {
                "prompt": len(t.prompt["token_ids"]),
                "response": len(t.response["token_ids"]),
                "log_probs": len(t.response["log_probs"]),
                "version": t.metadata["server"]["version"],
                "reward": t.reward,
            }
            for t in done.triplets
        ],
        "raw": [e["event_type"] for e in done.events],
        "raw_requests": [
            {
                "messages": len(e["data"]["request"].get("messages", [])),
                "choices": len(e["data"]["response"].get("choices", [])),
                "token_ids": [len(c.get("token_ids", [])) for c in e["data"]["response"]["choices"]],
                "status": e["data"]["status"],
                "delivered": e["data"]["delivered"],
            }
            for e in done.events
            if e["event_type"] == "model_request"
        ],
        "triplet_events": [e["event_type"] for e in done.triplet_events],
    }


def is_gone(client, rollout_id):
    return client.get(f"/api/rollouts/{rollout_id}").status_code == 404


def sync_scenario(base_url, key, endpoint):
    hooks = NoteHooks()
    agl = manager(AglRolloutManager, base_url, key, 1, n=2, hooks=hooks)
    agl.delete_model()
    registered = agl.register_model([endpoint])
    done = agl.enqueue_and_wait_until_completed(
        tasks(["turns", "choices", "parallel", "stream", "fail", "unreported"]), is_train=True
    )
    val = agl.enqueue_and_wait_until_completed(tasks(["turns"]), is_train=False)
    return {
        "registered": [m.model_dump() for m in registered],
        "done": [completed_view(d) for d in done],
        "val": [completed_view(d) for d in val],
        "gone": [is_gone(agl.client, d.rollout_id) for d in done + val],
        "hooks": {"succeeded": len(hooks.succeeded), "failed": sorted(hooks.failed)},
    }


def async_scenario(base_url, key, endpoint):
    """Two steps: the second group of the first step is carried over into the second step."""
    agl = manager(AglAsyncRolloutManager, base_url, key, 1, n=2)
    agl.client.post_with_retry("/proxy/resume")
    agl.delete_model()
    agl.register_model([endpoint])
    first, carried = agl.enqueue_and_wait_until_group_completed(
        tasks(["turns", "wait"]), [], is_train=True, target_finished_group_num=1
    )
    paused = agl.client.post_with_retry("/proxy/pause", json={"reason": "weight update"}).json()
    again = agl.client.post_with_retry("/proxy/pause", json={"reason": "weight update"}).json()
    print("PAUSED", flush=True)
    deadline = time.time() + 60
    while True:
        state = agl.client.get("/proxy/state").json()
        if state["inflight"] == 0 or time.time() > deadline:
            break
        time.sleep(0.05)
    drained = state
    print("DRAINED", flush=True)
    sys.stdin.readline()
    resumed = agl.client.post_with_retry("/proxy/resume").json()
    agl.client.post_with_retry("/proxy/resume")
    agl.delete_model()
    agl.register_model([endpoint])
    second, left = agl.enqueue_and_wait_until_group_completed(
        tasks(["turns"]), carried, is_train=True, target_finished_group_num=2
    )
    return {
        "first": [completed_view(d) for d in first],
        "carried": len(carried),
        "paused": paused,
        "again": again,
        "drained": drained,
        "resumed": resumed,
        "second": [completed_view(d) for d in second],
        "left": len(left),
        "gone": [is_gone(agl.client, d.rollout_id) for d in first + second],
    }


def client_scenario(base_url, key, endpoint):
    """The clients themselves, sync and async, over the routes that the managers do not use."""
    out = {}
    with AgentLightningSyncClient(base_url=base_url, key="wrong", max_retries=0) as bad:
        out["bad_key"] = bad.get("/api/rollouts", params={"state_in": "queuing"}).status_code
        out["health"] = bad.get("/healthz").json()

    async def run():
        async with AgentLightningAsyncClient(base_url=base_url, key=key, timeout=60) as client:
            await client.post("/proxy/resume")
            await client.post("/api/models", json=[{"model": "policy", "endpoint": endpoint}])
            body = [
                {"input": {"question": "q", "plan": "turns", "list": [1], "data_id": "d7"},
                 "rollout_id": "own-id", "metadata": {"batch_idx": 3, "note": "kept"}},
                {"input": ["not", "an", "object"], "is_train": False,
                 "config": {"timeout_seconds": 7, "local": {"env_map": {"Q": "input.5"}}}},
            ]
            created = [Rollout.model_validate(r) for r in (await client.post("/api/rollouts", json=body)).json()]
            repeated = (await client.post("/api/rollouts", json=body[:1])).json()[0]
            out["created"] = {
                "ids": [created[0].rollout_id, len(created[1].rollout_id)],
                "same": repeated["rollout_id"] == "own-id"
                and repeated["status"]["created_at"] == created[0].status.created_at,
                "metadata": created[0].metadata.model_dump(),
                "input": created[1].input,
                "timeouts": [c.config.timeout_seconds for c in created],
            }
            after = 0
            items = []
            while len(items) < 2:
                page = (await client.get("/api/rollouts/terminal", params={"after": after})).json()
                items += page["items"]
                after = page["next_after"]
                await asyncio.sleep(0.1)
            out["terminal"] = sorted(
                [[i["state"], i["data_id"], i["is_train"]] for i in items]
            )
            out["after"] = after - page["total_terminal"]
            detail = (await client.get("/api/rollouts/own-id")).json()
            rollout = Rollout.model_validate(detail["rollout"])
            out["attempts"] = detail["attempts"] == [rollout.status.last_attempt_id]
            only = (await client.get("/api/rollouts/own-id/events", params={"event_type": "reward"})).json()
            out["only_rewards"] = [Event.model_validate(e).event_type for e in only]
            out["forbidden"] = (
                await client.patch("/api/rollouts/own-id", json={"status": {"state": "running"}})
            ).status_code
            out["unknown_key"] = (
                await client.patch("/api/rollouts/own-id", json={"status": {"sate": "failed"}})
            ).status_code
            patched = (
                await client.patch("/api/rollouts/own-id", json={"status": {"k8s_job_name": "job-7"}})
            ).json()
            out["patched"] = [
                patched["status"]["k8s_job_name"],
                patched["status"]["version"] - rollout.status.version,
            ]
            bad = (await client.get(f"/api/rollouts/{created[1].rollout_id}")).json()
            out["unusable"] = bad["rollout"]["status"]["error_message"]
            out["deleted"] = [(await client.delete("/api/rollouts/own-id")).status_code for _ in range(2)]
            out["events_gone"] = (await client.get("/api/rollouts/own-id/events")).status_code
            out["later"] = (await client.get("/api/rollouts/terminal", params={"after": after})).json()["items"]
            # A call through the one base URL, with the trainer's own key.
            await client.post("/api/rollouts", json=[{"input": {"plan": "hang", "question": "", "list": [1]}, "rollout_id": "proxied"}])
            path = "/proxy/rollout/proxied/attempt/0/mode/train/openai/v1"
            chat = {"model": "any", "messages": [{"role": "user", "content": "hi"}]}
            whole = await client.post(f"{path}/chat/completions", json=chat)
            async with client.stream("POST", f"{path}/chat/completions", json={**chat, "stream": True}) as response:
                lines = [line async for line in response.aiter_lines() if line.startswith("data: ")]
            out["proxied"] = [whole.status_code, whole.json()["choices"][0]["message"]["role"], len(lines) > 2, lines[-1]]
            out["no_path"] = (await client.post(f"{path}/embeddings", json=chat)).status_code
            out["no_mode"] = (await client.post(path.replace("train", "test") + "/chat/completions", json=chat)).status_code
            out["no_rollout"] = (
                await client.post(path.replace("proxied", "nobody") + "/chat/completions", json=chat)
            ).status_code
            await client.patch("/api/rollouts/proxied", json={"status": {"last_attempt_id": "0"}})
            deadline = time.time() + 30
            triplets = []
            while len(triplets) < 2 and time.time() < deadline:
                triplets = (await client.get("/api/rollouts/proxied/events", params={"format": "triplet"})).json()
                await asyncio.sleep(0.1)
            out["proxied_triplets"] = [
                len(t["data"]["response_token_ids"]) == len(t["data"]["response_log_probs"]) > 0 for t in triplets
            ]
            started = time.time()
            out["deleted_running"] = (await client.delete("/api/rollouts/proxied")).status_code
            out["deleted_soon"] = time.time() - started < 20
            await client.delete("/api/models")
            await client.post("/api/rollouts", json=[{"input": {"plan": "hang", "question": "", "list": [1]}, "rollout_id": "later"}])
            out["no_model"] = (
                await client.post(path.replace("proxied", "later") + "/chat/completions", json=chat)
            ).status_code
            out["deleted_running_too"] = (await client.delete("/api/rollouts/later")).status_code

    asyncio.run(run())
    return out


def main():
    scenario, base_url, key, endpoint = sys.argv[1:5]
    run = {"sync": sync_scenario, "async": async_scenario, "client": client_scenario}[scenario]
    print(json.dumps(run(base_url, key, endpoint)))


main()
