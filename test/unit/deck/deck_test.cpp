#include "choir/deck/deck.hpp"
#include "src/models/gpt/family.hpp"

#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "src/run/run_setup.hpp"
#include "test/unit/train/deck_case.hpp"

namespace choir {
namespace {

using test::complaint;
using test::small_deck;

// Values nested so deeply that printing one would overflow the stack; more errors than anybody
// explains.
TEST(Deck, HostileTextIsRefusedAsAnyOther) {
  const std::string deep = std::string(60000, '[') + std::string(60000, ']');
  EXPECT_NE(complaint({"train.max_steps=" + deep}).find("train.max_steps = \"[[["),
            std::string::npos);
  EXPECT_NE(complaint({"data.hints=" + deep}).find("data.hints = "), std::string::npos);
  std::string text = "{\"a\": 1";
  for (int i = 0; i < 20000; ++i) text += fmt::format(", \"trian{}\": 1", i);
  try {
    parse_deck(test::families(), text + "}", "a.json", {});
    ADD_FAILURE() << "accepted";
  } catch (const DeckError& error) {
    const std::string said = error.what();
    EXPECT_NE(said.find("a.json: 2000"), std::string::npos);
    EXPECT_NE(said.find("did you mean the section 'train'?"), std::string::npos);
    EXPECT_NE(said.find("unknown key 'trian19999'\n"), std::string::npos);
  }
}

TEST(Deck, DerivesWhatIsLeftOut) {
  const Deck deck = small_deck({"model.n_head=6", "model.n_embd=192", "train.max_steps=77"});
  EXPECT_EQ(deck.run.name, "small");
  EXPECT_EQ(deck.run.dir, "runs/small");
  EXPECT_EQ(gpt_of(deck).n_kv_head, 6);
  EXPECT_EQ(gpt_of(deck).ffn_width, 768);
  EXPECT_EQ(deck.optimizer.decay_steps, 77);
  EXPECT_EQ(deck.origins.at("optimizer.decay_steps").source, KeySource::derived);
  // Llama 2 7B: 8/3 of 4096 rounded up to a multiple of 64.
  const Deck llama =
      small_deck({"model.n_embd=4096", "model.n_head=32", "model.activation=swiglu"});
  EXPECT_EQ(gpt_of(llama).ffn_width, 10944);
  EXPECT_EQ(small_deck({"run.name=x"}).run.dir, "runs/x");
  EXPECT_EQ(small_deck({"run.dir=y"}).run.dir, "y");
}

TEST(Deck, EveryPrecisionOfTheTableIsAccepted) {
  for (const char* name : {"fp64", "fp32", "bf16-mixed", "bf16-true", "fp16-mixed"}) {
    EXPECT_EQ(complaint({std::string("train.precision=") + name}), "");
    EXPECT_NO_THROW(precision_of(name));
  }
  EXPECT_NE(complaint({"train.precision=fp8"}).find("fp16-mixed"), std::string::npos);
  EXPECT_THROW(precision_of("fp8"), DeckError);
}

TEST(Deck, NamesOfEnumerationsMeanTheirEnumerators) {
  const auto gpt = [](const std::string& text) { return gpt_of(small_deck({text})); };
  EXPECT_EQ(gpt("model.norm=layernorm").norm, ops::Norm::layernorm);
  EXPECT_EQ(gpt("model.norm=rmsnorm").norm, ops::Norm::rmsnorm);
  EXPECT_EQ(gpt("model.activation=gelu").activation, ops::Activation::gelu);
  EXPECT_EQ(gpt("model.activation=gelu_tanh").activation, ops::Activation::gelu_tanh);
  EXPECT_EQ(gpt("model.activation=relu").activation, ops::Activation::relu);
  EXPECT_EQ(gpt("model.activation=swiglu").activation, ops::Activation::swiglu);
  EXPECT_EQ(gpt("model.position=learned").position, Position::learned);
  EXPECT_EQ(gpt("model.position=rope").position, Position::rope);
}

TEST(Deck, ResolvedDeckReadsBackToTheSameDeck) {
  Deck deck = small_deck({"train.max_steps=9", "run.walltime=00:30:00", "data.hints.cb_nodes=4",
                          "model.position=rope", "eval.sample_prompt=\"a\\nb\""});
  resolve_batch(deck, 2);
  EXPECT_EQ(deck.train.grad_accum, 2);
  const std::string text = resolved_json(deck);
  const auto json = nlohmann::json::parse(text);
  EXPECT_EQ(json["train"]["max_steps"], 9);
  EXPECT_EQ(json["sources"]["train.max_steps"], "override");
  EXPECT_EQ(json["sources"]["train.micro_batch_size"], "file");
  EXPECT_EQ(json["sources"]["train.grad_accum"], "derived");
  EXPECT_EQ(json["derived"]["train.grad_accum"], 2);
  EXPECT_EQ(json["sources"]["optimizer.beta1"], "default");

  Deck again = parse_deck(test::families(), text, "runs/small/deck.json", {});
  EXPECT_EQ(again.run.dir, "runs/small") << "not runs/deck";
  EXPECT_EQ(again.run.walltime, 1800);
  EXPECT_EQ(gpt_settings(again).sample_prompt, "a\nb");
  resolve_batch(again, 2);
  EXPECT_EQ(deck_digest(again), deck_digest(deck));
  Deck elsewhere = parse_deck(test::families(), text, "runs/small/deck.json", {});
  EXPECT_EQ(resolve_batch(elsewhere, 4).accum, 1);  // other ranks: derived anew
}

TEST(Deck, ListingHasKeysThatConcernTheRun) {
  const std::string cpu = deck_listing(small_deck(), false);
  const auto lists = [](const std::string& text, const std::string& key) {
    return text.find(" " + key) != std::string::npos;
  };
  EXPECT_TRUE(lists(cpu, "model.n_layer") && lists(cpu, "optimizer.beta1=0.9")) << cpu;
  for (const char* key : {"fault.kill_rank", "train.cuda_graph", "model.mels", "data.buckets",
                          "train.micro_batches="})
    EXPECT_FALSE(lists(cpu, key)) << key;
  EXPECT_TRUE(lists(deck_listing(small_deck(), true), "train.cuda_graph"));
  EXPECT_TRUE(
      lists(deck_listing(small_deck({"train.cuda_graph=false"}), false), "train.cuda_graph"));
  EXPECT_TRUE(lists(deck_listing(small_deck({"fault.enable=true"}), false), "fault.kill_rank"));
}

TEST(Deck, ChangesThatAreAllowedAreKeysOrAll) {
  const auto allowed = [](const std::string& word) {
    return small_deck({"checkpoint.allow_changes=" + word}).checkpoint.allow_changes;
  };
  EXPECT_EQ(allowed("true"), (std::vector<std::string>{"true"}));
  EXPECT_EQ(allowed("[\"run.seed\",\"data.train\"]"),
            (std::vector<std::string>{"run.seed", "data.train"}));
  const Deck from_file = parse_deck(
      test::families(), R"({"checkpoint": {"allow_changes": true}, "data": {"train": "a.txt"},
                     "train": {"micro_batch_size": 1, "grad_accum": 1}})",
      "a.json", {});
  EXPECT_EQ(from_file.checkpoint.allow_changes, (std::vector<std::string>{"true"}));
  EXPECT_NE(complaint({"checkpoint.allow_changes=run.sead"}).find("'run.sead' is not a key"),
            std::string::npos);
}

TEST(Deck, DigestSeesValuesNotTheirSources) {
  EXPECT_EQ(deck_digest(small_deck({"run.seed=1337"})), deck_digest(small_deck()));
  EXPECT_NE(deck_digest(small_deck({"run.seed=1338"})), deck_digest(small_deck()));
  EXPECT_EQ(deck_digest(small_deck()).size(), 16u);
}

TEST(Deck, WhatIsMissingIsSaid) {
  const auto said = [](const std::string& text) -> std::string {
    try {
      parse_deck(test::families(), text, "m.json", {});
    } catch (const DeckError& error) {
      return error.what();
    }
    return {};
  };
  const std::string empty = said("{}");
  EXPECT_NE(empty.find("data.train is not given"), std::string::npos) << empty;
  EXPECT_EQ(empty.find("batch"), std::string::npos) << "one pass of 8 sequences: " << empty;
  EXPECT_EQ(said("[]").rfind("m.json:1: a deck is an object", 0), 0u);
  // A refused value does not cause complaints about values that depend on it.
  const std::string one = said(
      "{\"data\": {\"train\": [\"x\"]},\n\"train\": {\"micro_batch_size\": \"two\","
      " \"global_batch_size\": 8}}");
  EXPECT_EQ(one, "m.json:2: train.micro_batch_size = \"two\": expected an integer, not text");
}

TEST(Deck, NamesOfOtherProgramsGetAHint) {
  const std::pair<const char*, const char*> kPairs[] = {
      {"train.max_iters", "train.max_steps"},
      {"train.gradient_accumulation_steps", "train.grad_accum"},
      {"train.batch_size", "train.micro_batch_size"},
      {"train.dtype", "train.precision"},
      {"optimizer.lr_decay_iters", "optimizer.decay_steps"},
      {"train.eval_iters", "eval.batches"},
      {"train.always_save_checkpoint", "checkpoint.interval"},
      {"trainer.max_steps", "train.max_steps"},
      {"trainer.devices", "mpiexec"},
      {"data_parallel", "parallel.data"},
      {"num_layers", "model.n_layer"},
      {"model.hidden_size", "model.n_embd"},
      {"model.num_attention_heads", "model.n_head"},
      {"seq_length", "model.block_size"},
      {"micro-batch-size", "train.micro_batch_size"},
      {"tensor_model_parallel_size", "parallel.tensor"},
      {"per_device_train_batch_size", "train.micro_batch_size"},
      {"num_hidden_layers", "model.n_layer"},
      {"num_key_value_heads", "model.n_kv_head"},
      {"architectures", "choir import"},
      {"nproc_per_node", "jobs/launch"},
      {"master_addr", "MPI"},
      {"train_micro_batch_size_per_gpu", "train.micro_batch_size"},
      {"training.local_batch_size", "train.micro_batch_size"},
      {"parallelism.tensor_parallel_degree", "parallel.tensor"}};
  for (const auto& [theirs, ours] : kPairs) {
    const std::string said = complaint({std::string(theirs) + "=1"});
    EXPECT_NE(said.find(fmt::format("unknown key '{}'", theirs)), std::string::npos) << said;
    EXPECT_NE(said.find(ours), std::string::npos) << theirs << ": " << said;
  }
}

TEST(Deck, FilesOfOtherProgramsAreKnownAndTranslated) {
  const auto said = [](const std::string& text, const std::string& source) -> std::string {
    try {
      parse_deck(test::families(), text, source, {});
    } catch (const DeckError& error) {
      return std::string(error.what()) + "\n" + error.hint();
    }
    return {};
  };
  const auto expect = [](const std::string& text, std::initializer_list<const char*> words) {
    for (const char* word : words) EXPECT_NE(text.find(word), std::string::npos) << text;
  };
  expect(said("# of nanoGPT\nbatch_size = 64 # sequences\ndropout = 0.2\nout_dir = 'out'\nmystery "
              "= 1\n",
              "config/train_char.py"),
         {"is Python, and a deck is JSON", "batch_size = 64", "train.micro_batch_size=64",
          " model.dropout=0.2", " run.dir=out"});
  EXPECT_EQ(said("mystery = 1\n", "a.py").find("mystery"), std::string::npos);
  expect(said("trainer:\n  max_steps: 3\noptim:\n  name: adam\n  lr: 2e-4\n", "conf.yaml"),
         {"is YAML", "train.max_steps=3", "optimizer.learning_rate=2e-4"});
  EXPECT_EQ(said("name: adam\n", "conf.yaml").find("=adam"), std::string::npos)
      << "run.name or optimizer.name";
  expect(said("optim:\n  name: adam\n", "conf.yaml"), {"optim.name = adam", "optimizer.name=adam"});
  expect(said("torchrun --nproc_per_node 8 a.py \\\n  --num-layers 24 \\\n --lr=1e-4\n", "run.sh"),
         {"a shell script", "model.n_layer=24", "optimizer.learning_rate=1e-4"});
  // The text decides about the format, not the name alone.
  EXPECT_EQ(said("// a deck\n{\"data\": {\"train\": \"a\"}}", "deck.py"), "");
  expect(said("batch_size = 64\n", "deck.json"),
         {"a list of settings", "a deck is JSON", "train.micro_batch_size=64"});
  expect(said("model {\n", "deck.json"), {"not valid JSON"});
}

// A job script, a program or weights in the place of the deck are named, with what to type.
TEST(Deck, FilesThatAreNoDecksAreNamed) {
  const auto expect = [](const std::string& text, const std::string& source,
                         std::initializer_list<const char*> words) {
    std::string said;
    try {
      parse_deck(test::families(), text, source, {});
    } catch (const DeckError& error) {
      said = std::string(error.what()) + "\n" + error.hint();
    }
    for (const char* word : words) EXPECT_NE(said.find(word), std::string::npos) << said;
  };
  expect("#!/bin/bash -l\n#PBS -l select=1\ncd x\n", "job.pbs",
         {"'job.pbs' is a job script of PBS", "qsub -v DECK=DECK.json jobs/generic.pbs"});
  expect("#!/bin/bash\n# mine\n#SBATCH -N 1\n", "job",
         {"a job script of SLURM", "sbatch jobs/generic.slurm DECK.json"});
  expect("#!/bin/sh\necho hi\n", "run", {"'run' is a shell script, and a deck is JSON"});
  expect("#!/usr/bin/env python3\nbatch_size = 12\n", "train",
         {"a program in Python", "train.micro_batch_size=12"});
  expect("import torch\nmax_iters = 5\n", "conf", {"a program in Python"});
  expect("# a run\nmodel:\n  n_layer: 2\n", "conf", {"is YAML", "model.n_layer=2"});
  expect("[model]\nn_layer = 2\nname = \"x\"\n", "conf", {"is TOML", "model.n_layer=2"});
  expect(std::string("GGUF\3\0\0\0", 8) + std::string(16, '\0'), "m.gguf",
         {"'m.gguf' is ", "choir import m.gguf"});
  // Broken JSON stays broken JSON.
  expect("[1, 2]", "a.json", {"a deck is an object"});
  expect("\"model\": { \"n_layer\": 2 }", "a.json", {"not valid JSON"});
}

// Words of other programs for values lead to the word here, not to the one with the nearest
// letters.
TEST(Deck, ForeignValuesAreKnown) {
  const std::pair<const char*, const char*> kWords[] = {
      {"device=gpu", "did you mean 'cuda'?"},
      {"device=cuda:0", "did you mean 'cuda'?"},
      {"train.precision=bf16", "did you mean 'bf16-mixed'?"},
      {"train.precision=float16", "did you mean 'fp16-mixed'?"},
      {"train.precision=float32", "did you mean 'fp32'?"},
      {"optimizer.schedule=warmup_cosine", "did you mean 'cosine'?"},
      {"train.recompute=true", "did you mean 'full'?"},
      {"parallel.transport=tcp", "did you mean 'mpi'?"},
      {"model.position=rotary", "did you mean 'rope'?"},
      {"model.type=llama", "did you mean 'gpt'?"}};
  for (const auto& [word, advice] : kWords) {
    std::string said;
    try {
      parse_deck(test::families(), "{}", "deck.json", {word});
    } catch (const DeckError& error) {
      said = error.what();
    }
    EXPECT_NE(said.find(advice), std::string::npos) << word << ": " << said;
  }
}

TEST(Deck, DescribeAndSchemaNameEveryKeyOfTheContract) {
  const std::string table = describe_deck(test::families());
  const auto schema = nlohmann::json::parse(deck_schema(test::families()));
  for (const char* key : {"run.dir",
                          "run.name",
                          "run.seed",
                          "run.walltime",
                          "model.type",
                          "model.n_layer",
                          "model.n_head",
                          "model.n_kv_head",
                          "model.n_embd",
                          "model.block_size",
                          "model.vocab_size",
                          "model.bias",
                          "model.tile",
                          "model.dropout",
                          "model.tied",
                          "model.norm",
                          "model.activation",
                          "model.position",
                          "model.attention",
                          "model.lora.rank",
                          "model.encoder.n_layer",
                          "model.lm.lora.rank",
                          "train.precision",
                          "train.micro_batch_size",
                          "train.global_batch_size",
                          "train.grad_accum",
                          "train.max_steps",
                          "train.reproducible",
                          "train.recompute",
                          "train.profile",
                          "train.freeze",
                          "train.unfreeze",
                          "optimizer.name",
                          "optimizer.learning_rate",
                          "optimizer.min_lr",
                          "optimizer.warmup_steps",
                          "optimizer.decay_steps",
                          "optimizer.schedule",
                          "optimizer.beta1",
                          "optimizer.beta2",
                          "optimizer.weight_decay",
                          "optimizer.grad_clip",
                          "eval.interval",
                          "log.interval",
                          "checkpoint.interval",
                          "checkpoint.keep",
                          "checkpoint.resume",
                          "data.reader",
                          "data.hints",
                          "data.preload",
                          "parallel.tensor",
                          "parallel.pipeline",
                          "parallel.context",
                          "parallel.context_mode",
                          "parallel.data",
                          "parallel.sequence",
                          "parallel.zero",
                          "parallel.zero_group",
                          "parallel.zero_prefetch",
                          "parallel.schedule",
                          "parallel.virtual_stages",
                          "parallel.offload",
                          "parallel.offload_gradients",
                          "parallel.order",
                          "device"}) {
    EXPECT_NE(table.find(std::string("  ") + key + " "), std::string::npos) << key;
    std::string pointer = "/properties/" + std::string(key);
    while (pointer.find('.') != pointer.npos) pointer.replace(pointer.find('.'), 1, "/properties/");
    EXPECT_TRUE(schema.contains(nlohmann::json::json_pointer(pointer))) << pointer;
  }
}

}  // namespace
}  // namespace choir
