// Tests of the tensor, and the run, from which a parameter starts.
#include "src/train/loop/initial_state.hpp"

#include <gtest/gtest.h>

namespace choir {
namespace {

using Sources = std::vector<InitSource>;

StoredTensor tensor(const std::string& name, Shape shape = {4}, DType dtype = DType::f32) {
  return {.name = name, .dtype = dtype, .shape = shape, .pieces = {}};
}

std::vector<TensorRecord> records(const std::vector<StoredTensor>& tensors) {
  std::vector<TensorRecord> list;
  for (const StoredTensor& t : tensors)
    list.push_back({.name = t.name, .dtype = t.dtype, .shape = t.shape});
  return list;
}

/// A model of two towers with a part between them.
const std::vector<StoredTensor> kModel{tensor("parameters/encoder.blocks.0.weight", {4, 4}),
                                       tensor("parameters/encoder.blocks.0.norm.weight"),
                                       tensor("parameters/projector.weight", {6, 4}),
                                       tensor("parameters/lm.blocks.0.weight", {6, 6}),
                                       tensor("parameters/lm.head.weight", {9, 6}),
                                       tensor("state/running/encoder.blocks.0.norm.running_mean")};
const std::vector<TensorRecord> kHearing =
    records({tensor("parameters/encoder.blocks.0.weight", {4, 4}),
             tensor("parameters/encoder.blocks.0.norm.weight"),
             tensor("optimizer/m/encoder.blocks.0.norm.weight"),
             tensor("parameters/head.weight", {5, 4}), tensor("state/step", {1}, DType::i64),
             tensor("state/running/encoder.blocks.0.norm.running_mean")});
const std::vector<TensorRecord> kLanguage =
    records({tensor("parameters/blocks.0.weight", {6, 6}), tensor("parameters/head.weight", {9, 6}),
             tensor("parameters/blocks.1.weight", {6, 6})});

std::vector<std::string> names(const InitPlan::Part& part) {
  std::vector<std::string> list;
  for (const StoredTensor& t : part.tensors) list.push_back(t.name);
  return list;
}

std::string refusal(const std::vector<StoredTensor>& model, const Sources& sources,
                    const std::vector<std::string>& skip = {}) {
  try {
    plan_init(model, sources, skip);
    return "";
  } catch (const DeckError& error) {
    return error.what() + std::string(" | ") + error.hint();
  }
}

void expect_words(const std::string& text, const std::vector<std::string>& words) {
  for (const std::string& word : words)
    EXPECT_NE(text.find(word), std::string::npos) << word << "\n" << text;
}

TEST(StartingPoints, NamesAreTheirsOrLackWhatThePatternHasInFront) {
  const Sources sources{{"encoder.*", "runs/asr", kHearing}, {"lm.*", "runs/lm", kLanguage}};
  const InitPlan plan = plan_init(kModel, sources, {});
  ASSERT_EQ(plan.parts.size(), 2u);
  EXPECT_EQ(plan.parts[0].prefix, "");
  EXPECT_EQ(names(plan.parts[0]),
            (std::vector<std::string>{"parameters/encoder.blocks.0.weight",
                                      "parameters/encoder.blocks.0.norm.weight",
                                      "state/running/encoder.blocks.0.norm.running_mean"}));
  EXPECT_EQ(plan.parts[0].elements, 16 + 4 + 4);
  EXPECT_EQ(plan.parts[1].prefix, "lm.");
  EXPECT_EQ(names(plan.parts[1]),
            (std::vector<std::string>{"parameters/blocks.0.weight", "parameters/head.weight"}));
  EXPECT_EQ(plan.unused.at("runs/asr"), std::vector<std::string>{"head.weight"});
  EXPECT_EQ(plan.unused.at("runs/lm"), std::vector<std::string>{"blocks.1.weight"});
  expect_words(plan.report(sources),
               {"warm start from 2 runs", "\n  encoder.*: 3 tensors, 24 parameters of runs/asr\n",
                "\n  lm.*: 2 tensors, 90 parameters of runs/lm, there without 'lm.'\n",
                "\n  begin anew: 1 tensor, 24 parameters: projector\n",
                "\n  not used: 1 tensor of runs/lm: blocks.1.weight"});
}

TEST(StartingPoints, AsFewComponentsAsFindMost) {
  // Longer patterns lose only parameters that do not exist; the full name has precedence.
  const Sources deep{{"lm.blocks.*", "runs/lm", kLanguage}};
  EXPECT_EQ(plan_init(kModel, deep, {}).parts[0].prefix, "lm.");
  const Sources exact{{"lm.head.weight", "runs/lm", kLanguage}};
  EXPECT_EQ(names(plan_init(kModel, exact, {}).parts[0]),
            std::vector<std::string>{"parameters/head.weight"});
  const auto both = records(
      {tensor("parameters/lm.head.weight", {9, 6}), tensor("parameters/head.weight", {9, 6})});
  const Sources twice{{"lm.head.*", "runs/both", both}};
  EXPECT_EQ(names(plan_init(kModel, twice, {}).parts[0]),
            std::vector<std::string>{"parameters/lm.head.weight"});
  // A wildcard ends the prefix that can be removed, also within a component.
  const Sources vague{{"l?.head.weight", "runs/lm", kLanguage}};
  expect_words(refusal(kModel, vague), {"lm.head.weight: not there, as lm.head.weight"});
}

TEST(StartingPoints, OneRunForSeveralPatterns) {
  const Sources sources{{"encoder.*.norm.*", "runs/asr", kHearing},
                        {"encoder.*0.weight", "runs/asr", kHearing}};
  const InitPlan plan = plan_init(kModel, sources, {});
  EXPECT_EQ(plan.unused.at("runs/asr"), std::vector<std::string>{"head.weight"});
  EXPECT_EQ(plan.groups.at("encoder").fresh, 0);
  expect_words(plan.report(sources),
               {"warm start from 1 run\n", "begin anew: 3 tensors, 114 parameters: lm, projector"});
}

TEST(StartingPoints, WhatIsMissingOrOfAnotherShapeIsRefused) {
  std::vector<StoredTensor> model = kModel;
  const Sources sources{{"lm.*", "runs/lm", kLanguage}};
  model.push_back(tensor("parameters/lm.final_norm.weight"));
  expect_words(refusal(model, sources),
               {"1 of the 3 parameters that 'lm.*' matches cannot be taken from runs/lm:",
                "lm.final_norm.weight: not there, as final_norm.weight",
                "checkpoint.init_skip=[\"lm.final_norm.weight\"]"});
  model = kModel;
  model[4].shape = {12, 6};
  expect_words(refusal(model, sources), {"lm.head.weight: f32 [9, 6] there, f32 [12, 6] here"});
  model[4] = tensor("parameters/lm.head.weight", {9, 6}, DType::f64);
  expect_words(refusal(model, sources), {"lm.head.weight: f32 [9, 6] there, f64 [9, 6] here"});
  const InitPlan plan = plan_init(model, sources, {"lm.head.*"});
  EXPECT_EQ(plan.parts[0].tensors.size(), 1u);
  expect_words(plan.report(sources), {"lm (1 of 2)"});
  expect_words(refusal(model, sources, {"lm.*"}), {"nothing is left for 'lm.*' to take"});
}

TEST(StartingPoints, PatternsThatMatchNothingOrTheSameAreRefused) {
  expect_words(refusal(kModel, {{"llm.*", "runs/lm", kLanguage}}),
               {"checkpoint.init_from: 'llm.*' matches no parameter"});
  expect_words(refusal(kModel, {{"lm.*", "runs/lm", kLanguage}}, {"head.*"}),
               {"checkpoint.init_skip: 'head.*' matches no parameter"});
  expect_words(refusal(kModel, {{"*.head.*", "runs/lm", kLanguage}, {"lm.*", "b", kLanguage}}),
               {"'*.head.*' and 'lm.*' both match lm.head.weight"});
}

TEST(StartingPoints, AdaptersBeginAnewWhereTheRunHasNone) {
  std::vector<StoredTensor> model = kModel;
  model.push_back(tensor("parameters/lm.blocks.0.q.adapter_a", {2, 6}));
  const Sources sources{{"lm.*", "runs/lm", kLanguage}};
  EXPECT_EQ(plan_init(model, sources, {}).parts[0].tensors.size(), 2u);
  auto adapted = kLanguage;
  adapted.push_back(
      {.name = "parameters/blocks.0.q.adapter_a", .dtype = DType::f32, .shape = {2, 6}});
  const Sources again{{"lm.*", "runs/lm", adapted}};
  EXPECT_EQ(plan_init(model, again, {}).parts[0].tensors.size(), 3u);
  adapted.back().shape = {3, 6};
  expect_words(refusal(model, {{"lm.*", "runs/lm", adapted}}),
               {"f32 [3, 6] there, f32 [2, 6] here"});
}

}  // namespace
}  // namespace choir
