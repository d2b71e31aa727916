// Tests of low-rank adapters of linear layers: their gradients are right, and adapters of zero
// change nothing.
#include <gtest/gtest.h>

#include <algorithm>

#include "src/device/cpu_device.hpp"
#include "test/support/adapter_case.hpp"
#include "test/unit/train/engine_case.hpp"

namespace choir {
namespace {

using test::AdaptedLayers;
using test::AdapterOptions;

struct Layers {
  CpuDevice device;
  test::SingleRank single;
  AdaptedLayers layers;
  bool drops;
  explicit Layers(const AdapterOptions& options)
      : layers(device, *single.mesh, options), drops(options.dropout > 0) {}

  Parameter& find(const std::string& name) {
    auto& all = layers.rank().parameters().parameters();
    return *std::find_if(all.begin(), all.end(),
                         [&](const Parameter& p) { return p.name == name; });
  }
  /// <d_y, y>, the function whose gradient backward computes.
  double loss() {
    const std::vector<double> y = layers.run(drops ? Mode::train : Mode::evaluate).outputs;
    double sum = 0;
    for (std::size_t i = 0; i < y.size(); ++i) sum += layers.d_y[i] * y[i];
    return sum;
  }
  /// Compares central differences for all elements at `values` with `gradient`.
  void expect_gradient(double* values, const double* gradient, std::int64_t count,
                       const std::string& what) {
    constexpr double kStep = 1e-5;
    for (std::int64_t i = 0; i < count; ++i) {
      const double saved = values[i];
      values[i] = saved + kStep;
      const double above = loss();
      values[i] = saved - kStep;
      const double below = loss();
      values[i] = saved;
      const double numeric = (above - below) / (2 * kStep);
      EXPECT_NEAR(gradient[i], numeric, 1e-7 * (1 + std::abs(numeric))) << what << " " << i;
    }
  }
};

void expect_all_gradients(const AdapterOptions& options) {
  Layers l(options);
  const test::ContextResult result = l.layers.run();
  struct Gradient {
    Parameter* parameter;
    std::vector<double> values;
  };
  std::vector<Gradient> gradients;  // further passes in training add to those of the parameters
  for (Parameter& p : l.layers.rank().parameters().parameters()) {
    EXPECT_EQ(p.trainable, test::is_factor(p) || !options.frozen) << p.name;
    const double* values = p.gradient.as<double>();
    if (p.trainable) gradients.push_back({&p, {values, values + p.count()}});
  }
  l.expect_gradient(l.layers.x.data(), result.input_gradients.data(), std::ssize(l.layers.x), "x");
  for (const Gradient& g : gradients)
    l.expect_gradient(g.parameter->master.as<double>(), g.values.data(), g.parameter->count(),
                      g.parameter->name);
}

TEST(Adapter, GradientsAreThoseOfDifferences) {
  for (const bool gelu : {false, true})
    for (const bool frozen : {false, true}) expect_all_gradients({.gelu = gelu, .frozen = frozen});
}

TEST(Adapter, GradientsOfSectionsAndWithDropoutAreThoseOfDifferences) {
  expect_all_gradients({.frozen = true, .halves = true});
  expect_all_gradients({.gelu = true, .frozen = true, .halves = true});
  expect_all_gradients({.frozen = true, .dropout = 0.25});
  expect_all_gradients({.frozen = true, .postponed = true, .halves = true, .dropout = 0.25});
}

TEST(Adapter, DropoutIsOfTrainingAlone) {
  Layers drops({.dropout = 0.25}), keeps({.dropout = 0});
  EXPECT_TRUE(test::same_bits(drops.layers.run(Mode::evaluate).outputs,
                              keeps.layers.run(Mode::evaluate).outputs));
  EXPECT_GT(test::distance(drops.layers.run().outputs, keeps.layers.run().outputs), 1e-2);
}

TEST(Adapter, BeginsAsTheLayerWithoutIt) {
  for (const bool gelu : {false, true}) {
    Layers with({.gelu = gelu}), without({.rank = 0, .gelu = gelu});
    EXPECT_GT(test::distance(with.layers.run(Mode::evaluate).outputs,
                             without.layers.run(Mode::evaluate).outputs),
              1e-2)
        << "it is at work";
    for (const char* name : {"column.adapter_b", "row.adapter_b"}) {
      Parameter& p = with.find(name);
      EXPECT_EQ(p.init.kind, Init::Kind::zeros);
      std::fill_n(p.master.as<double>(), p.count(), 0.0);
    }
    EXPECT_TRUE(test::same_bits(with.layers.run(Mode::evaluate).outputs,
                                without.layers.run(Mode::evaluate).outputs));
    EXPECT_TRUE(
        test::same_bits(with.layers.run().input_gradients, without.layers.run().input_gradients));
  }
}

TEST(Adapter, FrozenWeightsChangeNoGradientOfTheFactors) {
  Layers all({}), factors({.frozen = true});
  all.layers.run(), factors.layers.run();
  for (const char* name :
       {"column.adapter_a", "column.adapter_b", "row.adapter_a", "row.adapter_b"})
    EXPECT_EQ(std::vector(all.find(name).gradient.as<double>(),
                          all.find(name).gradient.as<double>() + all.find(name).count()),
              std::vector(factors.find(name).gradient.as<double>(),
                          factors.find(name).gradient.as<double>() + factors.find(name).count()))
        << name;
}

TEST(Adapter, PostponedGradientsAreTheSameBits) {
  for (const bool gelu : {false, true}) {
    Layers now({.gelu = gelu}), later({.gelu = gelu, .postponed = true});
    const test::ContextResult a = now.layers.run(), b = later.layers.run();
    EXPECT_TRUE(test::same_bits(a.gradients, b.gradients));
    EXPECT_TRUE(test::same_bits(a.input_gradients, b.input_gradients));
    EXPECT_EQ(later.layers.rank().arena().live(), 0u);
  }
}

TEST(Adapter, FactorsFollowTheWeight) {
  ParameterSet parameters({.rank = 1, .ranks = 2, .sequence = true});
  parameters.begin_bucket("layers");
  const auto add = [&](const char* name, const ShardSpec& shard) {
    Linear(parameters, name, 8, 12, {.weight_shard = shard, .adapter = {.rank = 2, .alpha = 2}});
  };
  add("column", {.split_dim = 0, .sections = {{8}, {4}}});
  add("row", {.split_dim = 1});
  add("whole", {});
  const auto find = [&](const std::string& name) -> const Parameter& {
    return **std::find_if(parameters.all().begin(), parameters.all().end(),
                          [&](const Parameter* p) { return p->name == name; });
  };
  EXPECT_EQ(find("column.adapter_a").local, (Shape{2, 8}));
  EXPECT_EQ(find("column.adapter_b").local, (Shape{6, 2}));
  EXPECT_EQ(find("row.adapter_a").local, (Shape{2, 4}));
  EXPECT_EQ(find("row.adapter_b").local, (Shape{12, 2}));
  EXPECT_EQ(find("column.adapter_b").shard.sections.size(), 2u);
  for (const char* name : {"column.adapter_a", "row.adapter_b"})
    EXPECT_EQ(partial_runs(find(name)).size(), 1u) << name << " is a sum over the ranks";
  for (const char* name : {"column.adapter_b", "row.adapter_a", "whole.adapter_a"})
    EXPECT_TRUE(partial_runs(find(name)).empty()) << name << " is whole";
  EXPECT_THROW(add("tile", {.split_dim = 0, .tile = 0, .tiles = 2}), Error);
}

}  // namespace
}  // namespace choir
