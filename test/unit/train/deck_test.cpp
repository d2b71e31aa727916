#include "choir/train/deck.hpp"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "choir/train/run_setup.hpp"

namespace choir {
namespace {

constexpr const char* kSmall =
    "{\"data\": {\"train\": \"a.txt\"},\n \"train\": {\"micro_batch_size\": 2, "
    "\"global_batch_size\": 8}}";

Deck small(const std::vector<std::string>& overrides = {}) {
  return parse_deck(kSmall, "decks/small.json", overrides);
}

/// What is said about a small deck with these overrides; "" when it is accepted.
std::string complaint(const std::vector<std::string>& overrides) {
  try {
    small(overrides);
  } catch (const DeckError& error) {
    EXPECT_EQ(error.code(), ExitCode::deck);
    return error.what();
  }
  return {};
}

TEST(Deck, EveryShippedDeckIsReadAndResolves) {
  int decks = 0;
  for (const auto& entry : std::filesystem::directory_iterator("inputs")) {
    if (entry.path().extension() != ".json") continue;
    SCOPED_TRACE(entry.path());
    Deck deck = read_deck(entry.path(), {});
    ++decks;
    EXPECT_EQ(deck.train.grad_accum, 0) << "decks give what a step is made of, never grad_accum";
    EXPECT_GT(deck.model.speech() ? deck.train.micro_batches : deck.train.micro_batch_size, 0);
    EXPECT_EQ(deck.run.name, entry.path().stem());
    EXPECT_NO_THROW(resolve_batch(deck, 1));
  }
  EXPECT_GE(decks, 7);
}

// Values nested so deep that to show one would use up the stack; more errors than anybody explains.
TEST(Deck, HostileTextIsRefusedAsAnyOther) {
  const std::string deep = std::string(60000, '[') + std::string(60000, ']');
  EXPECT_NE(complaint({"train.max_steps=" + deep}).find("train.max_steps = \"[[["),
            std::string::npos);
  EXPECT_NE(complaint({"data.hints=" + deep}).find("data.hints = "), std::string::npos);
  std::string text = "{\"a\": 1";
  for (int i = 0; i < 20000; ++i) text += fmt::format(", \"trian{}\": 1", i);
  try {
    parse_deck(text + "}", "a.json", {});
    ADD_FAILURE() << "accepted";
  } catch (const DeckError& error) {
    const std::string said = error.what();
    EXPECT_NE(said.find("a.json: 2000"), std::string::npos);
    EXPECT_NE(said.find("did you mean the section 'train'?"), std::string::npos);
    EXPECT_NE(said.find("unknown key 'trian19999'\n"), std::string::npos);
  }
}

TEST(Deck, QuickstartAndDebugShareOutOverSmallNumbersOfRanks) {
  for (const char* path : {"inputs/gpt_quickstart.json", "inputs/debug.json"})
    for (const int ranks : {1, 2, 3, 4}) {
      Deck deck = read_deck(path, {});
      EXPECT_NO_THROW(resolve_batch(deck, ranks)) << path << " on " << ranks;
    }
}

// The settings of the talk's run, as published.
TEST(Deck, ShakespeareCharIsTheTalksRun) {
  Deck deck = read_deck("inputs/shakespeare_char.json", {});
  const GptConfig& gpt = deck.model.gpt;
  EXPECT_EQ(gpt.n_layer, 12);
  EXPECT_EQ(gpt.n_head, 12);
  EXPECT_EQ(gpt.n_embd, 768);
  EXPECT_EQ(gpt.block_size, 1024);
  EXPECT_FALSE(gpt.bias);
  EXPECT_TRUE(gpt.tied);
  EXPECT_EQ(gpt.activation, ops::Activation::gelu);
  EXPECT_EQ(deck.optimizer.learning_rate, 6e-4);
  EXPECT_EQ(deck.optimizer.min_lr, 6e-5);
  EXPECT_EQ(deck.optimizer.decay_steps, 600000);
  EXPECT_EQ(deck.optimizer.beta2, 0.95);
  const BatchSizes batch = resolve_batch(deck, 4);
  EXPECT_EQ(batch.accum, 1);
  EXPECT_EQ(batch.global * gpt.block_size, 262144);
  // 12 C^2 + 2 C a layer, the head and the last norm; C^2 from 4 attention and 8 feed-forward
  // squares.
  const std::int64_t c = gpt.n_embd, v = 65;
  EXPECT_EQ(gpt.n_layer * (4 * c * c + 2 * c * gpt.ffn_width + 2 * c) + v * c + c, 85003776);
}

TEST(Deck, BenchShapes) {
  struct Shape {
    const char* name;
    std::int64_t layers, heads, width, block;
    int batch;
    bool bias;
  };
  for (const Shape& s :
       {Shape{"a", 4, 4, 128, 64, 12, false}, Shape{"b", 6, 6, 384, 256, 8, false},
        Shape{"c", 12, 12, 768, 64, 4, true}, Shape{"d", 12, 12, 768, 256, 2, true}}) {
    SCOPED_TRACE(s.name);
    const Deck deck = read_deck(std::string("inputs/bench_") + s.name + ".json", {});
    const GptConfig& gpt = deck.model.gpt;
    EXPECT_EQ(gpt.n_layer, s.layers);
    EXPECT_EQ(gpt.n_head, s.heads);
    EXPECT_EQ(gpt.n_embd, s.width);
    EXPECT_EQ(gpt.block_size, s.block);
    EXPECT_EQ(gpt.bias, s.bias);
    EXPECT_EQ(gpt.dropout, 0);
    EXPECT_EQ(deck.train.micro_batch_size, s.batch);
    EXPECT_EQ(deck.train.global_batch_size, s.batch);
    EXPECT_EQ(deck.optimizer.decay_steps, deck.train.max_steps);
  }
  EXPECT_EQ(read_deck("inputs/bench_a.json", {}).train.max_steps, 2000);
  EXPECT_EQ(read_deck("inputs/bench_b.json", {}).train.max_steps, 500);
  EXPECT_EQ(read_deck("inputs/bench_c.json", {}).model.gpt.vocab_size, 50257);
}

TEST(Deck, DerivesWhatIsLeftOut) {
  const Deck deck = small({"model.n_head=6", "model.n_embd=192", "train.max_steps=77"});
  EXPECT_EQ(deck.run.name, "small");
  EXPECT_EQ(deck.run.dir, "runs/small");
  EXPECT_EQ(deck.model.gpt.n_kv_head, 6);
  EXPECT_EQ(deck.model.gpt.ffn_width, 768);
  EXPECT_EQ(deck.optimizer.decay_steps, 77);
  EXPECT_EQ(deck.origins.at("optimizer.decay_steps").source, KeySource::derived);
  // Llama 2 7B: 8/3 of 4096 rounded up to a multiple of 64.
  const Deck llama = small({"model.n_embd=4096", "model.n_head=32", "model.activation=swiglu"});
  EXPECT_EQ(llama.model.gpt.ffn_width, 10944);
  EXPECT_EQ(small({"run.name=x"}).run.dir, "runs/x");
  EXPECT_EQ(small({"run.dir=y"}).run.dir, "y");
}

TEST(Deck, EveryPrecisionOfTheTableIsAccepted) {
  for (const char* name : {"fp64", "fp32", "bf16-mixed", "bf16-true", "fp16-mixed"}) {
    EXPECT_EQ(complaint({std::string("train.precision=") + name}), "");
    EXPECT_NO_THROW(precision_of(name));
  }
  EXPECT_NE(complaint({"train.precision=fp8"}).find("fp16-mixed"), std::string::npos);
  EXPECT_THROW(precision_of("fp8"), DeckError);
}

TEST(Deck, LossScaleBelongsToFp16) {
  const auto scaling = [](const std::vector<std::string>& overrides) {
    return loss_scaling_of(small(overrides));
  };
  const std::string fp16 = "train.precision=fp16-mixed";
  EXPECT_FALSE(scaling({}).dynamic());
  EXPECT_EQ(scaling({}).start, 1);
  EXPECT_EQ(scaling({"train.precision=bf16-mixed"}).start, 1);
  EXPECT_EQ(scaling({fp16}).start, 65536);
  EXPECT_EQ(scaling({fp16}).window, 2000);
  EXPECT_EQ(scaling({fp16, "train.loss_scale=dynamic", "train.loss_scale_window=7"}).window, 7);
  EXPECT_EQ(scaling({fp16, "train.loss_scale=1024"}).start, 1024);
  EXPECT_FALSE(scaling({fp16, "train.loss_scale=1024"}).dynamic());
  const std::string elsewhere = complaint({"train.loss_scale=1024"});
  EXPECT_NE(elsewhere.find("train.loss_scale = 1024 is for train.precision"), std::string::npos)
      << elsewhere;
  EXPECT_NE(complaint({"train.loss_scale_window=5"}), "");
  EXPECT_NE(complaint({fp16, "train.loss_scale=8", "train.loss_scale_window=5"}), "");
  EXPECT_NE(complaint({fp16, "train.loss_scale=-1"}), "");
  EXPECT_NE(complaint({fp16, "train.loss_scale_window=0"}), "");
}

TEST(Deck, NamesOfEnumerationsMeanTheirEnumerators) {
  const auto gpt = [](const std::string& text) { return small({text}).model.gpt; };
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
  Deck deck = small({"train.max_steps=9", "run.walltime=00:30:00", "data.hints.cb_nodes=4",
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

  Deck again = parse_deck(text, "runs/small/deck.json", {});
  EXPECT_EQ(again.run.dir, "runs/small") << "not runs/deck";
  EXPECT_EQ(again.run.walltime, 1800);
  EXPECT_EQ(again.eval.sample_prompt, "a\nb");
  resolve_batch(again, 2);
  EXPECT_EQ(deck_digest(again), deck_digest(deck));
  Deck elsewhere = parse_deck(text, "runs/small/deck.json", {});
  EXPECT_EQ(resolve_batch(elsewhere, 4).accum, 1);  // other ranks: derived anew
}

TEST(Deck, DigestSeesValuesNotTheirSources) {
  EXPECT_EQ(deck_digest(small({"run.seed=1337"})), deck_digest(small()));
  EXPECT_NE(deck_digest(small({"run.seed=1338"})), deck_digest(small()));
  EXPECT_EQ(deck_digest(small()).size(), 16u);
}

TEST(Deck, ZeroStagesAndWhatGoesWithThem) {
  for (const int stage : {0, 1, 2, 3})
    EXPECT_EQ(small({fmt::format("parallel.zero={}", stage)}).parallel.zero, stage);
  EXPECT_NE(complaint({"parallel.zero=4"}).find("legal: 0 <= value <= 3"), std::string::npos)
      << complaint({"parallel.zero=4"});
  EXPECT_EQ(small({"parallel.zero=1", "parallel.zero_group=2"}).parallel.zero_group, "2");
  for (const char* wrong : {"some", "0", "-1", "2.5", ""})
    EXPECT_NE(complaint({"parallel.zero=1", fmt::format("parallel.zero_group={}", wrong)})
                  .find("expected \"all\", \"node\" or a number of ranks"),
              std::string::npos)
        << wrong;
  EXPECT_NE(complaint({"parallel.zero_group=2"}).find("is for parallel.zero = 1, 2 or 3"),
            std::string::npos);
  EXPECT_NE(complaint({"parallel.zero=2", "parallel.zero_prefetch=2"})
                .find("is for parallel.zero = 3, not 2"),
            std::string::npos);
}

TEST(Deck, UnfreezeTakesBackFromFreeze) {
  EXPECT_EQ(complaint({"train.freeze=embedding*"}), "");
  EXPECT_EQ(complaint({"train.freeze=[\"*\"]", "train.unfreeze=[\"head.*\"]"}), "");
  EXPECT_NE(complaint({"train.unfreeze=embedding*"}).find("takes back from train.freeze"),
            std::string::npos);
}

TEST(Deck, OffloadRules) {
  for (const char* place : {"none", "optimizer", "file"})
    EXPECT_EQ(complaint({std::string("parallel.offload=") + place}), "") << place;
  EXPECT_EQ(complaint({"parallel.offload=all", "parallel.zero=3"}), "");
  EXPECT_EQ(complaint({"parallel.offload=file", "parallel.offload_dir=/scratch"}), "");
  EXPECT_NE(complaint({"parallel.offload=all"}).find("nearest legal: zero = 3 (on one rank, too)"),
            std::string::npos);
  EXPECT_NE(complaint({"parallel.offload=optimizer", "parallel.offload_dir=/scratch"})
                .find("is for parallel.offload = \"file\", not \"optimizer\""),
            std::string::npos);
  EXPECT_NE(complaint({"parallel.offload=disk"}).find("none, optimizer, all, file"),
            std::string::npos);
}

TEST(Deck, DeviceAndTransportMustGoTogether) {
  EXPECT_EQ(complaint({"device=cuda"}), "");
  EXPECT_EQ(complaint({"device=cuda", "parallel.transport=staged", "parallel.share_device=true"}),
            "");
  EXPECT_NE(complaint({"device=cuda", "train.precision=fp64"}).find("stays on the CPU"),
            std::string::npos);
  EXPECT_NE(complaint({"device=cpu", "parallel.transport=nccl"}).find("auto, mpi, node"),
            std::string::npos);
  EXPECT_NE(complaint({"device=cpu", "parallel.share_device=true"}).find("remove one"),
            std::string::npos);
  EXPECT_NE(complaint({"device=tpu"}).find("auto, cpu, cuda"), std::string::npos);
}

TEST(Deck, WhatCannotBeDividedAmongTensorRanksIsRefused) {
  EXPECT_EQ(
      complaint({"model.n_head=4", "model.n_embd=128", "parallel.tensor=3", "model.ffn_width=384"}),
      "command line: model.n_head = 4 cannot be divided among parallel.tensor = 3 ranks; "
      "nearest legal: n_head = 3 or 6, or tensor = 2 or 4");
  EXPECT_EQ(
      complaint({"model.n_head=6", "model.n_embd=96", "model.n_kv_head=2", "parallel.tensor=3"}),
      "command line: model.n_kv_head = 2 is neither a multiple nor a divisor of "
      "parallel.tensor = 3; nearest legal: tensor = 2 or 6");
  EXPECT_EQ(complaint({"model.ffn_width=130", "parallel.tensor=4"}),
            "command line: model.ffn_width = 130 cannot be divided among parallel.tensor = 4 "
            "ranks; nearest legal: ffn_width = 128 or 132, or tensor = 2");
  EXPECT_EQ(complaint({"parallel.sequence=true"}),
            "command line: parallel.sequence = true divides tokens among tensor ranks, but "
            "parallel.tensor = 1; nearest legal: sequence = false, or tensor = 2");
  for (const char* precision : {"fp64", "fp32", "bf16-mixed", "bf16-true", "fp16-mixed"})
    EXPECT_EQ(
        small({fmt::format("train.precision={}", precision), "parallel.tensor=2"}).parallel.tensor,
        2);
  EXPECT_NE(complaint({"parallel.tensor=9"}).find("8"), std::string::npos);
  const Deck deck = small({"parallel.tensor=4", "parallel.sequence=true"});
  EXPECT_TRUE(deck.parallel.sequence);
}

TEST(Deck, TilesThatDoNotDivideAreRefused) {
  EXPECT_EQ(complaint({"model.ffn_width=96", "model.tile=5"}),
            "command line: model.tile = 5 does not divide model.ffn_width = 96; nearest legal: "
            "tile = 4 or 6, or ffn_width = 95 or 100");
  EXPECT_EQ(complaint({"model.ffn_width=96", "model.tile=32", "parallel.tensor=2"}),
            "command line: model.tile = 32 does not divide model.ffn_width = 96, of which each of "
            "parallel.tensor = 2 ranks has 48; nearest legal: tile = 24 or 48, or ffn_width = 64 "
            "or 128");
  EXPECT_NE(complaint({"model.tile=0"}).find("model.tile"), std::string::npos);
  EXPECT_NE(complaint({"model.tile=65"}).find("64"), std::string::npos);
  EXPECT_EQ(complaint({"model.ffn_width=96", "model.tile=3"}), "");
  EXPECT_EQ(small({"model.ffn_width=96", "model.tile=3"}).model.gpt.tile, 3);
}

TEST(Deck, CrossChecksNameTheNearestLegalValues) {
  EXPECT_EQ(
      complaint({"model.n_embd=100", "model.n_head=12"}),
      "command line: model.n_embd = 100 is not a multiple of model.n_head = 12; nearest legal: "
      "n_embd = 96 or 108, or n_head = 10 or 20");
  EXPECT_EQ(
      complaint({"model.n_kv_head=5"}),
      "command line: model.n_kv_head = 5 does not divide model.n_head = 12; nearest legal: 4 or 6");
  EXPECT_EQ(
      complaint({"model.n_kv_head=24"}),
      "command line: model.n_kv_head = 24 does not divide model.n_head = 12; nearest legal: 12");
  EXPECT_NE(complaint({"model.position=rope", "model.n_embd=36"})
                .find("3 wide; nearest legal: n_embd = "
                      "24 or 48"),
            std::string::npos);
  EXPECT_NE(complaint({"optimizer.min_lr=1"}).find("legal: 0 <= min_lr <= 0.001"),
            std::string::npos);
  EXPECT_NE(complaint({"data.readers_every=2"}).find("data.reader = \"scatter\""),
            std::string::npos);
  EXPECT_NE(complaint({"data.format=synthetic"}).find("reads nothing"), std::string::npos);
  EXPECT_NE(complaint({"train.profile=5:3"}).find("expected \"k:l\""), std::string::npos);
  EXPECT_NE(complaint({"train.profile=5:3000"}).find("after train.max_steps"), std::string::npos);
  EXPECT_NE(complaint({"run.walltime=30"}).find("leaves no time"), std::string::npos);
  EXPECT_NE(complaint({"parallel.order=tp-cp-dp-dp"}).find("once each"), std::string::npos);
  EXPECT_NE(complaint({"fault.enable=true", "fault.hang_rank=1"}).find("go together"),
            std::string::npos);
  EXPECT_EQ(complaint({"train.max_steps=5", "optimizer.warmup_steps=100"}), "");
}

TEST(Deck, FaultsAreEnabledAndComplete) {
  EXPECT_EQ(complaint({"fault.stop_step=3", "fault.kill_in_save=write"}),
            "command line: fault.kill_in_save, fault.stop_step: failures are made on purpose only "
            "with fault.enable = true; set that, or remove the rest");
  EXPECT_EQ(complaint({"fault.enable=true"}), "");
  EXPECT_EQ(complaint({"fault.stop_step=-1"}), "");
  const auto said = [](std::vector<std::string> overrides) {
    overrides.emplace_back("fault.enable=true");
    return complaint(overrides);
  };
  for (const char* name : {"kill", "hang", "pause", "throw", "slow", "flip", "write_fail"}) {
    const std::string key = fmt::format("fault.{}", name);
    EXPECT_NE(said({key + "_rank=1"}).find("go together"), std::string::npos) << key;
    EXPECT_NE(said({key + "_step=1"}).find("go together"), std::string::npos) << key;
    EXPECT_EQ(said({key + "_rank=1", key + "_step=1"}), "") << key;
  }
  EXPECT_NE(said({"fault.nan_rank=1", "fault.nan_step=2"}).find("fault.nan_rank does nothing"),
            std::string::npos);
  EXPECT_NE(said({"fault.nan_parameter=x"}).find("does nothing without fault.nan_rank"),
            std::string::npos);
  EXPECT_NE(said({"fault.phase=comm", "fault.nan_step=2"}).find("fault.phase does nothing"),
            std::string::npos);
  EXPECT_NE(said({"fault.kill_in_save=lunch"}).find("rename"), std::string::npos);
}

TEST(Deck, WhatIsMissingIsSaid) {
  const auto said = [](const std::string& text) -> std::string {
    try {
      parse_deck(text, "m.json", {});
    } catch (const DeckError& error) {
      return error.what();
    }
    return {};
  };
  const std::string empty = said("{}");
  EXPECT_NE(empty.find("data.train is not given"), std::string::npos) << empty;
  EXPECT_NE(
      empty.find("give two of train.micro_batch_size, train.global_batch_size, train.grad_accum"),
      std::string::npos)
      << empty;
  EXPECT_EQ(said("[]").rfind("m.json:1: a deck is an object", 0), 0u);
  // A refused value does not cause complaints about what rests on it.
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
      {"num_key_value_heads", "model.n_kv_head"}};
  for (const auto& [theirs, ours] : kPairs) {
    const std::string said = complaint({std::string(theirs) + "=1"});
    EXPECT_NE(said.find(fmt::format("unknown key '{}'", theirs)), std::string::npos) << said;
    EXPECT_NE(said.find(ours), std::string::npos) << theirs << ": " << said;
  }
}

TEST(Deck, DescribeAndSchemaNameEveryKeyOfTheContract) {
  const std::string table = describe_deck();
  const auto schema = nlohmann::json::parse(deck_schema());
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
                          "parallel.data",
                          "parallel.sequence",
                          "parallel.zero",
                          "parallel.zero_group",
                          "parallel.zero_prefetch",
                          "parallel.schedule",
                          "parallel.virtual_stages",
                          "parallel.offload",
                          "parallel.order",
                          "device"}) {
    EXPECT_NE(table.find(std::string("  ") + key + " "), std::string::npos) << key;
    std::string pointer = "/properties/" + std::string(key);
    if (const auto dot = pointer.find('.'); dot != pointer.npos)
      pointer.replace(dot, 1, "/properties/");
    EXPECT_TRUE(schema.contains(nlohmann::json::json_pointer(pointer))) << pointer;
  }
}

}  // namespace
}  // namespace choir
