// Tests of rules about several keys of a deck: a combination that does not fit is refused, and the
// message names the nearest one that does.
#include <fmt/core.h>

#include "src/models/gpt/family.hpp"
#include "src/run/run_setup.hpp"
#include "test/unit/train/deck_case.hpp"

namespace choir {
namespace {

using test::complaint;
using test::small_deck;

TEST(DeckRules, LossScaleBelongsToFp16) {
  const auto scaling = [](const std::vector<std::string>& overrides) {
    return loss_scaling_of(small_deck(overrides));
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

TEST(DeckRules, ZeroStagesAndWhatGoesWithThem) {
  for (const int stage : {0, 1, 2, 3})
    EXPECT_EQ(small_deck({fmt::format("parallel.zero={}", stage)}).parallel.zero, stage);
  EXPECT_NE(complaint({"parallel.zero=4"}).find("legal: 0 <= value <= 3"), std::string::npos)
      << complaint({"parallel.zero=4"});
  EXPECT_EQ(small_deck({"parallel.zero=1", "parallel.zero_group=2"}).parallel.zero_group, "2");
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

TEST(DeckRules, UnfreezeTakesBackFromFreeze) {
  EXPECT_EQ(complaint({"train.freeze=embedding*"}), "");
  EXPECT_EQ(complaint({"train.freeze=[\"*\"]", "train.unfreeze=[\"head.*\"]"}), "");
  EXPECT_NE(complaint({"train.unfreeze=embedding*"}).find("makes exceptions to train.freeze"),
            std::string::npos);
}

TEST(DeckRules, FactorsOfLearningRatesAreNumbersAboveZero) {
  const Deck deck = small_deck({R"(optimizer.scale={"blocks.*":0.1})", "optimizer.scale.head.*=2"});
  EXPECT_EQ(rate_factors(deck.optimizer.scale),
            (std::map<std::string, double>{{"blocks.*", 0.1}, {"head.*", 2}}));
  for (const char* wrong : {"0", "-1", "fast", "", "1e999", "0.1x"})
    EXPECT_NE(complaint({fmt::format("optimizer.scale.head.*={}", wrong)})
                  .find("the factor of 'head.*' is"),
              std::string::npos)
        << wrong;
}

TEST(DeckRules, ARunBeginsWithOneOtherOrSeveral) {
  EXPECT_EQ(small_deck({}).checkpoint.init_run(), "");
  EXPECT_EQ(small_deck({"checkpoint.init_from=runs/a"}).checkpoint.init_run(), "runs/a");
  const std::string map = R"(checkpoint.init_from={"blocks.*":"runs/a"})";
  EXPECT_EQ(small_deck({map}).checkpoint.init_map(), (TextMap{{"blocks.*", "runs/a"}}));
  EXPECT_EQ(small_deck({map}).checkpoint.init_run(), "");
  EXPECT_EQ(complaint({map, "checkpoint.init_skip=[\"blocks.0.*\"]"}), "");
  const auto refused = [](const std::vector<std::string>& overrides, const char* words) {
    EXPECT_NE(complaint(overrides).find(words), std::string::npos) << complaint(overrides);
  };
  refused({map, "checkpoint.init_take=[\"head.*\"]"}, "is for a single checkpoint.init_from");
  refused({"checkpoint.init_take=[\"head.*\"]"}, "which is not given");
  refused({"checkpoint.init_from={}"}, "without patterns");
  refused({R"(checkpoint.init_from={"":"runs/a"})"}, "an empty pattern");
  refused({R"(checkpoint.init_from={"x":""})"}, "no path for 'x'");
  refused({"checkpoint.init_from={blocks.*:runs/a}"}, "not valid JSON");
}

TEST(DeckRules, OffloadRules) {
  for (const char* place : {"none", "optimizer", "file"})
    EXPECT_EQ(complaint({std::string("parallel.offload=") + place}), "") << place;
  EXPECT_EQ(complaint({"parallel.offload=all", "parallel.zero=3"}), "");
  EXPECT_EQ(complaint({"parallel.offload=file", "parallel.offload_dir=/scratch"}), "");
  EXPECT_NE(complaint({"parallel.offload=all"}).find("nearest legal: zero = 3 (on one rank, too)"),
            std::string::npos);
  EXPECT_NE(complaint({"parallel.offload=optimizer", "parallel.offload_dir=/scratch"})
                .find("is for parallel.offload = \"file\", not \"optimizer\""),
            std::string::npos);
  for (const char* place : {"optimizer", "file"})
    for (const char* stage : {"2", "3"})
      EXPECT_EQ(
          complaint({std::string("parallel.offload=") + place, "parallel.offload_gradients=true",
                     std::string("parallel.zero=") + stage}),
          "")
          << place << stage;
  EXPECT_NE(
      complaint({"parallel.offload=file", "parallel.offload_gradients=true", "parallel.zero=1"})
          .find("nearest legal: zero = 2 (on one rank, too)"),
      std::string::npos);
  EXPECT_NE(complaint({"parallel.offload_gradients=true", "parallel.zero=2"})
                .find("is for parallel.offload = "),
            std::string::npos);
  EXPECT_NE(complaint({"parallel.offload=disk"}).find("none, optimizer, all, file"),
            std::string::npos);
}

TEST(DeckRules, DeviceAndTransportMustGoTogether) {
  EXPECT_EQ(complaint({"device=cuda"}), "");
  EXPECT_EQ(complaint({"device=cuda", "parallel.transport=staged", "parallel.share_device=true"}),
            "");
  EXPECT_NE(complaint({"device=cuda", "train.precision=fp64"}).find("stays on the CPU"),
            std::string::npos);
  EXPECT_NE(complaint({"device=cpu", "parallel.transport=nccl"}).find("auto, mpi, node"),
            std::string::npos);
  EXPECT_NE(complaint({"device=cpu", "parallel.share_device=true"}).find("remove one"),
            std::string::npos);
  EXPECT_EQ(complaint({"device=cuda", "train.time_products=true"}), "");
  EXPECT_NE(complaint({"device=cpu", "train.time_products=true"}).find("remove one"),
            std::string::npos);
  EXPECT_NE(complaint({"train.time_products=true", "train.reproducible=true"}).find("by timing"),
            std::string::npos);
  EXPECT_EQ(complaint({"device=cpu", "train.reproducible=true"}), "");
  EXPECT_NE(complaint({"device=tpu"}).find("auto, cpu, cuda"), std::string::npos);
}

TEST(DeckRules, WhatCannotBeDividedAmongTensorRanksIsRefused) {
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
    EXPECT_EQ(small_deck({fmt::format("train.precision={}", precision), "parallel.tensor=2"})
                  .parallel.tensor,
              2);
  EXPECT_NE(complaint({"parallel.tensor=9"}).find("8"), std::string::npos);
  const Deck deck = small_deck({"parallel.tensor=4", "parallel.sequence=true"});
  EXPECT_TRUE(deck.parallel.sequence);
}

TEST(DeckRules, TilesThatDoNotDivideAreRefused) {
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
  EXPECT_EQ(gpt_of(small_deck({"model.ffn_width=96", "model.tile=3"})).tile, 3);
}

TEST(DeckRules, CrossChecksNameTheNearestLegalValues) {
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
  EXPECT_NE(complaint({"optimizer.wsd_decay_steps=5"})
                .find("optimizer.wsd_decay_steps = 5 is for optimizer.schedule = \"wsd\", not "
                      "\"cosine\"; leave it out, or change optimizer.schedule"),
            std::string::npos);
  EXPECT_NE(complaint({"optimizer.wsd_decay_shape=cosine"}).find("is for optimizer.schedule"),
            std::string::npos);
  EXPECT_NE(complaint({"optimizer.schedule=wsd", "optimizer.warmup_steps=100",
                       "optimizer.wsd_decay_steps=950"})
                .find("does not fit between the warm-up (step 100) and train.max_steps = 1000; "
                      "nearest legal: 900"),
            std::string::npos);
  EXPECT_EQ(complaint({"optimizer.schedule=inverse_sqrt", "optimizer.min_lr=1e-5"}), "");
  EXPECT_NE(complaint({"data.readers_every=2"}).find("data.reader = \"scatter\""),
            std::string::npos);
  EXPECT_NE(complaint({"data.format=synthetic"}).find("reads nothing"), std::string::npos);
  EXPECT_NE(complaint({"train.profile=5:3"}).find("expected \"k:l\""), std::string::npos);
  EXPECT_NE(complaint({"train.profile=5:3000"}).find("after train.max_steps"), std::string::npos);
  EXPECT_NE(complaint({"run.walltime=30"}).find("leaves no time"), std::string::npos);
  EXPECT_NE(complaint({"parallel.order=tp-cp-dp-dp"}).find("once each"), std::string::npos);
  EXPECT_NE(complaint({"fault.enable=true", "fault.hang_rank=1"}).find("must be given together"),
            std::string::npos);
  EXPECT_EQ(complaint({"train.max_steps=5", "optimizer.warmup_steps=100"}), "");
}

TEST(DeckRules, FaultsAreEnabledAndComplete) {
  EXPECT_EQ(complaint({"fault.stop_step=3", "fault.kill_in_save=write"}),
            "command line: fault.kill_in_save, fault.stop_step: faults need fault.enable = true; "
            "set it, or remove these keys");
  EXPECT_EQ(complaint({"fault.enable=true"}), "");
  EXPECT_EQ(complaint({"fault.stop_step=-1"}), "");
  const auto said = [](std::vector<std::string> overrides) {
    overrides.emplace_back("fault.enable=true");
    return complaint(overrides);
  };
  for (const char* name : {"kill", "hang", "pause", "throw", "slow", "flip", "write_fail"}) {
    const std::string key = fmt::format("fault.{}", name);
    EXPECT_NE(said({key + "_rank=1"}).find("must be given together"), std::string::npos) << key;
    EXPECT_NE(said({key + "_step=1"}).find("must be given together"), std::string::npos) << key;
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

/// The message about this deck, "" if it is legal.
std::string fault_of(const std::string& text, const std::vector<std::string>& overrides = {}) {
  try {
    parse_deck(test::families(), text, "deck.json", overrides);
  } catch (const DeckError& error) {
    return error.what();
  }
  return {};
}

bool says(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

constexpr const char* kIdle = "optimizer.min_lr = 1e-05 has no effect with optimizer.schedule";

TEST(DeckRules, AKeyWithoutEffectIsRefused) {
  const std::string cosine = R"({"data": {"train": ["x"]}, "optimizer": {"min_lr": 1e-5}})";
  const std::string constant =
      R"({"data": {"train": ["x"]}, "optimizer": {"min_lr": 1e-5, "schedule": "constant"}})";
  EXPECT_EQ(fault_of(cosine), "");
  EXPECT_EQ(fault_of(constant),
            "deck.json:1: optimizer.min_lr = 1e-05 has no effect with optimizer.schedule = "
            "\"constant\"; leave it out, or change optimizer.schedule");
  EXPECT_TRUE(says(fault_of(constant, {"train.max_steps=2"}), kIdle));
  EXPECT_EQ(fault_of(constant, {"optimizer.schedule=linear"}), "") << "the whole is legal";
  EXPECT_EQ(fault_of(constant, {"optimizer.min_lr=0"}), "") << "a default is no wish";
  EXPECT_TRUE(says(complaint({"optimizer.schedule=constant", "optimizer.min_lr=1e-5"}),
                   "command line: " + std::string(kIdle)));
  EXPECT_EQ(complaint({"optimizer.schedule=constant", "optimizer.min_lr=0"}), "");
  EXPECT_TRUE(says(complaint({"optimizer.schedule=inverse_sqrt", "optimizer.decay_steps=9"}),
                   "optimizer.decay_steps = 9 has no effect with optimizer.schedule"));
}

// The file of a run is a whole, and an override may change one key of it. The keys that lose their
// effect by that need not be overridden as well.
TEST(DeckRules, AnOverrideMayLeaveKeysOfTheFileWithoutEffect) {
  const std::string cosine = R"({"data": {"train": ["x"]}, "optimizer": {"min_lr": 1e-5}})";
  EXPECT_EQ(fault_of(cosine, {"optimizer.schedule=constant"}), "");
  EXPECT_TRUE(says(fault_of(cosine, {"optimizer.schedule=constant", "optimizer.min_lr=2e-5"}),
                   "2e-05 has no"));
  const Deck deck =
      parse_deck(test::families(), cosine, "deck.json", {"optimizer.schedule=constant"});
  EXPECT_EQ(fault_of(resolved_json(deck)), "") << "what a run wrote is read again";

  const Deck file = parse_deck(test::families(), cosine, "deck.json", {});
  std::vector<KeyProblem> problems;
  vary_deck(file, {"optimizer.schedule=constant"}, problems);
  EXPECT_TRUE(problems.empty());
  vary_deck(file, {"optimizer.schedule=constant", "optimizer.min_lr=2e-5"}, problems);
  EXPECT_EQ(problems.size(), 1u);
}

TEST(DeckRules, KeysOfFamiliesWithoutEffect) {
  const auto asr = [](const std::vector<std::string>& overrides) {
    return fault_of(R"({"model": {"type": "fastconformer"}})", overrides);
  };
  EXPECT_TRUE(says(asr({"model.freq_masks=0", "model.freq_width=5"}),
                   "model.freq_width = 5 has no effect with model.freq_masks = 0"));
  EXPECT_TRUE(says(asr({"model.time_masks=0", "model.time_width=9"}),
                   "model.time_width = 9.0 has no effect with model.time_masks = 0"));
  EXPECT_FALSE(says(asr({"model.freq_masks=1", "model.freq_width=5"}), "no effect"));
  EXPECT_TRUE(says(asr({"data.format=synthetic", "data.buckets=5"}),
                   "data.buckets = 5 has no effect with data.format = \"synthetic\""));
  EXPECT_TRUE(says(complaint({"eval.sample_tokens=0", "eval.sample_prompt=a"}),
                   "eval.sample_prompt = \"a\" has no effect with eval.sample_tokens = 0"));
  for (const char* type : {"salm", "duplex"}) {
    const std::string deck = fmt::format(R"({{"model": {{"type": "{}"}}}})", type);
    for (const char* key : {"data.reader=node", "data.preload=host", "data.hints.cb_nodes=2"})
      EXPECT_TRUE(
          says(fault_of(deck, {key}), fmt::format(" has no effect with model.type = \"{}\"", type)))
          << key;
    EXPECT_FALSE(says(fault_of(deck), "no effect"));
  }
  const std::string salm = R"({"model": {"type": "salm", "encoder": {"freq_masks": 0}}})";
  EXPECT_TRUE(says(fault_of(salm, {"model.encoder.freq_width=5"}),
                   "model.encoder.freq_width = 5 has no effect with model.encoder.freq_masks = 0"));
}

}  // namespace
}  // namespace choir
