#!/usr/bin/env python3
"""Converts a task of lm-evaluation-harness into the JSON lines of `choir eval --tasks`.

    python3 inputs/harness_task.py TASK [--fewshot N] [--limit N] [--seed N] > TASK.jsonl

It needs the package lm_eval, which downloads the task's data. The requests are those that the
harness sends to a model, few-shot examples included, so the scores have the same definitions. One
file has one kind of item: groups and tasks whose contexts differ between the choices (Winogrande)
are refused.
"""
import argparse
import json
import sys


def stop(message):
    sys.exit(f"harness_task.py: {message}")


def requests_of(name, fewshot, limit, seed):
    """The task and its requests, grouped by document."""
    from lm_eval.tasks import TaskManager, get_task_dict

    task = get_task_dict([name], TaskManager()).get(name)
    if not hasattr(task, "build_all_requests"):
        stop(f"{name} is a group, or no task; name one of its tasks")
    task.set_fewshot_seed(seed=seed)
    if fewshot is not None:
        task.set_config(key="num_fewshot", value=fewshot)
    task.build_all_requests(limit=limit, rank=0, world_size=1)
    documents = {}
    for request in task.instances:
        documents.setdefault(request.doc_id, []).append(request)
    return task, documents


def choices_item(task, doc, requests):
    if getattr(task, "multiple_input", False) or getattr(task, "multiple_inputs", False):
        stop("the contexts of this task differ between the choices, which our files cannot express")
    choices = list(task.doc_to_choice(doc))
    answer = task.doc_to_target(doc)
    if isinstance(answer, str):
        answer = choices.index(answer)
    if not isinstance(answer, int):
        stop(f"document {requests[0].doc_id} has several right answers")
    requests = requests[: len(choices)]  # those behind them have no context (acc_mutual_info)
    context, first = requests[0].args
    delimiter = first[: len(first) - len(choices[0])]
    for choice, request in zip(choices, requests):
        if request.args != (context, delimiter + choice):
            stop(f"document {request.doc_id} has an unexpected request for a choice")
    return {"context": context, "choices": choices, "answer": answer, "delimiter": delimiter}


def generation_item(task, doc, request):
    context, options = request.args
    answer = task.doc_to_target(doc)
    if not isinstance(answer, str):
        stop(f"document {request.doc_id} has several right answers")
    until = options.get("until") or []
    item = {"context": context, "answer": answer, "until": [until] if isinstance(until, str) else until}
    item["max_tokens"] = options.get("max_gen_toks", 256)
    return item


def item_of(task, requests):
    request, doc = requests[0], requests[0].doc
    if request.request_type == "loglikelihood_rolling":
        return {"text": request.args[0]}
    if request.request_type == "generate_until":
        return generation_item(task, doc, request)
    if task.OUTPUT_TYPE == "multiple_choice":
        return choices_item(task, doc, requests)
    return {"context": request.args[0], "continuation": request.args[1]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("task")
    parser.add_argument("--fewshot", type=int, help="examples in the context; default: of the task")
    parser.add_argument("--limit", type=int, help="documents; default: all")
    parser.add_argument("--seed", type=int, default=1234, help="of the choice of examples")
    words = parser.parse_args()
    task, documents = requests_of(words.task, words.fewshot, words.limit, words.seed)
    for number in sorted(documents):
        item = {"id": number, **item_of(task, documents[number])}
        print(json.dumps(item, ensure_ascii=False, allow_nan=False))


if __name__ == "__main__":
    main()
