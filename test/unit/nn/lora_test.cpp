// Tests of LoRA as in PEFT: numbers worked out by hand, and the meaning of targets.
#include "choir/nn/layers/linear.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "src/device/cpu_device.hpp"
#include "test/support/context_case.hpp"
#include "test/unit/train/engine_case.hpp"

namespace choir {
namespace {

void expect_values(const std::vector<double>& values, const std::vector<double>& wanted) {
  ASSERT_EQ(values.size(), wanted.size());
  for (std::size_t i = 0; i < values.size(); ++i) EXPECT_NEAR(values[i], wanted[i], 1e-13) << i;
}

TEST(Lora, ForwardAndBackwardAreThoseOfPeft) {
  CpuDevice device;
  test::SingleRank single;
  test::RankOfContext rank(device, *single.mesh, "fp64", false);
  rank.parameters().begin_bucket("layer");
  Linear layer(rank.parameters(), "layer", 4, 3,
               {.bias = false, .adapter = Lora{.rank = 2, .alpha = 4}.of({"q"})});
  rank.parameters().freeze([](const Parameter& p) { return !is_adapter(p.name); });
  rank.place();
  const auto find = [&](const std::string& name) -> Parameter& {
    for (Parameter& p : rank.parameters().parameters())
      if (p.name == name) return p;
    throw Error(ExitCode::other, name);
  };
  rank.put({1, 0, -1, 2, .5, 1, 0, -.5, 0, -1, 1, 0}, find("layer.weight").master);
  rank.put({.1, -.2, .3, .4, -.5, .6, .7, -.8}, find("layer.adapter_a").master);
  rank.put({1, 0, .5, -1, -.25, 2}, find("layer.adapter_b").master);
  Pass& pass = rank.pass();
  pass.begin(Mode::train, {.batch = 1, .tokens = 2}, 0);
  const Tensor x = pass.allocate({2, 4}, "x"), d_y = pass.allocate({2, 3}, "d_y");
  rank.put({1, 2, 3, 4, -1, .5, 0, 2}, x);
  rank.put({1, -1, 2, 0, .5, -1}, d_y);
  expect_values(rank.get(layer.forward(pass, x)), {10.4, 3.5, -1.7, 4.2, 1.2, -4});
  expect_values(rank.get(layer.backward(pass, d_y)), {-4.5, 3, 8, -5.5, 2.85, -1.7, -4.2, 4.15});
  const auto gradient = [&](const std::string& name) {
    const Parameter& p = find(name);
    return std::vector<double>(p.gradient.as<double>(), p.gradient.as<double>() + p.count());
  };
  expect_values(gradient("layer.adapter_a"), {-1, .5, 0, 2, 15, 17.5, 30, 30});
  expect_values(gradient("layer.adapter_b"), {4.4, -.8, -3.8, 0, 7.6, 0});
  // The results for unit vectors are the columns of PEFT's merged weight.
  pass.begin(Mode::evaluate, {.batch = 1, .tokens = 4}, 0);
  const Tensor units = pass.allocate({4, 4}, "units");
  rank.put({1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1}, units);
  expect_values(rank.get(layer.forward(pass, units)),
                {1.2, 1.6, -2.05, -.4, -.4, 1.5, -.4, -1.1, 3.65, 2.8, 1.5, -3.4});
}

TEST(Lora, TargetsChooseSections) {
  const Lora lora{.rank = 2, .alpha = 8, .targets = {"q", "v", "down"}};
  EXPECT_EQ(lora.of({"q", "k", "v"}).sections, (std::vector<std::string>{"q", "", "v"}));
  EXPECT_EQ(lora.of({"q", "k", "v"}).rank, 2);
  EXPECT_EQ(lora.of({"gate", "up"}).rank, 0) << "none of them";
  EXPECT_TRUE(lora.of({"down"}).sections.empty()) << "the whole weight";
  EXPECT_FALSE(Lora{.targets = {"all"}}.adapts("q")) << "rank 0";
  EXPECT_TRUE((Lora{.rank = 1}.adapts("gate")));
  EXPECT_DOUBLE_EQ(lora.factor(), 4);
  EXPECT_DOUBLE_EQ((Lora{.rank = 4, .alpha = 8, .rank_stabilised = true}.factor()), 4);
}

TEST(Lora, SectionsHavePairsOfTheirOwnOnEveryRank) {
  ParameterSet parameters({.rank = 3, .ranks = 4});
  parameters.begin_bucket("layers");
  const ShardSpec rows{.split_dim = 0, .sections = {{16, 8}, {4, 2}, {4, 2}}};
  Linear(parameters, "qkv", 16, 24,
         {.weight_shard = rows,
          .adapter = Lora{.rank = 2, .targets = {"q", "v"}}.of({"q", "k", "v"})});
  const auto find = [&](const std::string& name) -> const Parameter* {
    for (const Parameter* p : parameters.all())
      if (p->name == name) return p;
    return nullptr;
  };
  EXPECT_EQ(find("qkv.k.adapter_a"), nullptr);
  EXPECT_EQ(find("qkv.q.adapter_b")->local, (Shape{4, 2}));
  EXPECT_EQ(find("qkv.v.adapter_b")->shape, (Shape{4, 2}));
  EXPECT_EQ(find("qkv.v.adapter_b")->local, (Shape{2, 2})) << "a head that two ranks share";
  EXPECT_FALSE(partial_runs(*find("qkv.v.adapter_b")).empty()) << "... whose gradients are summed";
  EXPECT_EQ(find("qkv.v.adapter_a")->local, (Shape{2, 16}));
  EXPECT_FALSE(partial_runs(*find("qkv.v.adapter_a")).empty());
}

}  // namespace
}  // namespace choir
