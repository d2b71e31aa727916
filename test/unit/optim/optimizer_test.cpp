// AdamW and LARS over buckets against the textbook in f64, tensor by tensor.
#include "src/optim/optimizer.hpp"

#include <gtest/gtest.h>

#include <map>

#include "src/optim/adamw.hpp"
#include "src/optim/lars.hpp"
#include "test/unit/train/engine_case.hpp"

namespace choir {
namespace {

constexpr double kRate = 1e-2, kDecay = 0.2, kBeta1 = 0.8, kBeta2 = 0.9, kEps = 1e-8;

struct Textbook {
  std::vector<double> w, m, v;
  void update(double g, std::size_t i, int t, bool decay, double rate) {
    m[i] = kBeta1 * m[i] + (1 - kBeta1) * g;
    v[i] = kBeta2 * v[i] + (1 - kBeta2) * g * g;
    const double mean = m[i] / (1 - std::pow(kBeta1, t)), square = v[i] / (1 - std::pow(kBeta2, t));
    w[i] -= rate * ((decay ? kDecay * w[i] : 0) + mean / (std::sqrt(square) + kEps));
  }
};

double read(const TensorView& x, std::int64_t i) {
  return ref::load(x.data, x.dtype, i);
}

/// Learning rate after three patterns, written out by hand.
double rate_of(const std::string& name) {
  if (name.starts_with("blocks.0.")) return 0.25 * kRate;
  if (name.ends_with("qkv.bias")) return 3 * kRate;
  return name == "embedding.tokens.weight" ? 0.5 * kRate : kRate;
}
const std::vector<RateScale> kScales{
    {"blocks.0.*", 0.25}, {"blocks.1.*qkv.bias", 3}, {"embedding.tokens.weight", 0.5}};

void check(const char* precision, double tolerance, bool scaled = false) {
  EngineOptions options = test::engine_options(test::tiny_gpt(), precision, 1);
  if (scaled) options.rate_scales = kScales;
  options.optimizer = {.beta1 = kBeta1, .beta2 = kBeta2, .epsilon = kEps, .weight_decay = kDecay};
  test::SingleRank single;
  test::EngineRun run(options, *single.mesh);
  ModelInstance& instance = run.engine().instance();
  Optimizer& adamw = run.engine().optimizer();
  std::map<std::string, Textbook> books;
  for (const Parameter& p : instance.parameters().parameters()) {
    Textbook& book = books[p.name];
    for (std::int64_t i = 0; i < p.count(); ++i) book.w.push_back(read(p.master, i));
    book.m.resize(book.w.size()), book.v.resize(book.w.size());
  }
  const double scale = 0.375;  // the clip factor, exact in binary
  for (int t = 1; t <= 5; ++t) {
    for (Parameter& p : instance.parameters().parameters())
      for (std::int64_t i = 0; i < p.count(); ++i) {
        const double g = normal_at(philox_key(static_cast<std::uint64_t>(t), p.name),
                                   static_cast<std::uint64_t>(i));
        if (p.gradient.dtype == DType::f64)
          p.gradient.as<double>()[i] = g;
        else
          p.gradient.as<float>()[i] = static_cast<float>(g);
        books[p.name].update(scale * read(p.gradient, i), static_cast<std::size_t>(i), t, p.decay,
                             scaled ? rate_of(p.name) : kRate);
      }
    const ops::StepControl control = test::applied(t, kRate, scale, kBeta1, kBeta2);
    adamw.step(instance.stream(), &control);
  }
  for (const Parameter& p : instance.parameters().parameters()) {
    const Textbook& book = books[p.name];
    EXPECT_EQ(p.decay, p.shape.rank() == 2) << p.name;
    for (std::int64_t i = 0; i < p.count(); ++i) {
      const auto k = static_cast<std::size_t>(i);
      ASSERT_NEAR(read(p.master, i), book.w[k], tolerance) << p.name << " " << i;
      ASSERT_NEAR(read(adamw.moment(0, p), i), book.m[k], tolerance) << p.name;
      ASSERT_NEAR(read(adamw.moment(1, p), i), book.v[k], tolerance) << p.name;
      if (p.value.dtype == DType::bf16) {
        ASSERT_EQ(read(p.value, i), static_cast<float>(bf16(p.master.as<float>()[i]))) << p.name;
      }
      if (p.value.dtype == DType::f16) {
        ASSERT_EQ(read(p.value, i), static_cast<float>(f16(p.master.as<float>()[i]))) << p.name;
      }
    }
  }
}

TEST(Optimizer, EqualsTheTextbook) {
  check("fp64", 1e-14);
  // Five updates of numbers below 4, each with about ten roundings of 2^-24.
  check("fp32", 5 * 10 * 4 * 0x1p-24);
  check("bf16-mixed", 5 * 10 * 4 * 0x1p-24);
  check("fp16-mixed", 5 * 10 * 4 * 0x1p-24);
}

TEST(Optimizer, EqualsTheTextbookWithRatesByPattern) {
  check("fp64", 1e-14, true);
  check("fp32", 5 * 10 * 4 * 0x1p-24, true);
  check("bf16-mixed", 5 * 10 * 4 * 0x1p-24, true);
}

double norm_of(const std::vector<double>& x) {
  double sum = 0;
  for (const double value : x) sum += value * value;
  return std::sqrt(sum);
}

constexpr double kLarsEpsilon = 0.125;

/// Algorithm 1 of You et al. 2017 for a tensor, with epsilon; a tensor without decay has no ratio
/// either.
void lars_by_hand(Textbook& book, const std::vector<double>& g, bool matrix, double rate) {
  constexpr double kTrust = 0.02, kMomentum = 0.8;
  const double w = norm_of(book.w), beta = matrix ? kDecay : 0;
  const double ratio = matrix && w > 0 ? kTrust * w / (norm_of(g) + beta * w + kLarsEpsilon) : 1;
  for (std::size_t i = 0; i < g.size(); ++i) {
    const double direction = g[i] + (matrix && w == 0 ? 0 : beta) * book.w[i];
    book.m[i] = kMomentum * book.m[i] + rate * ratio * direction;
  }
  for (std::size_t i = 0; i < g.size(); ++i) book.w[i] -= book.m[i];
}

void check_lars(const char* precision, double tolerance) {
  EngineOptions options = test::engine_options(test::tiny_gpt(), precision, 1);
  options.rate_scales = kScales;
  options.optimizer = {.epsilon = kLarsEpsilon,
                       .weight_decay = kDecay,
                       .rule = &lars_rule(),
                       .momentum = 0.8,
                       .trust_coefficient = 0.02};
  test::SingleRank single;
  test::EngineRun run(options, *single.mesh);
  ModelInstance& instance = run.engine().instance();
  Optimizer& lars = run.engine().optimizer();
  TrainedNorm gradients(instance.storage(), instance.device());
  std::map<std::string, Textbook> books;
  for (const Parameter& p : instance.parameters().parameters()) {
    Textbook& book = books[p.name];
    for (std::int64_t i = 0; i < p.count(); ++i) book.w.push_back(read(p.master, i));
    book.m.resize(book.w.size());
  }
  for (int t = 1; t <= 5; ++t) {
    for (Parameter& p : instance.parameters().parameters()) {
      std::vector<double> g;
      for (std::int64_t i = 0; i < p.count(); ++i) {
        const double drawn = normal_at(philox_key(static_cast<std::uint64_t>(t), p.name),
                                       static_cast<std::uint64_t>(i));
        if (p.gradient.dtype == DType::f64)
          p.gradient.as<double>()[i] = drawn;
        else
          p.gradient.as<float>()[i] = static_cast<float>(drawn);
        g.push_back(0.375 * read(p.gradient, i));
      }
      lars_by_hand(books[p.name], g, p.decay, rate_of(p.name));
    }
    const ops::StepControl control = test::applied(t, kRate, 0.375, kBeta1, kBeta2);
    gradients.compute(instance.stream(), {});
    lars.prepare(instance.stream(), {.holders = {}, .gradient = &gradients, .control = &control});
    lars.step(instance.stream(), &control);
  }
  for (const Parameter& p : instance.parameters().parameters())
    for (std::int64_t i = 0; i < p.count(); ++i) {
      const auto k = static_cast<std::size_t>(i);
      ASSERT_NEAR(read(p.master, i), books[p.name].w[k], tolerance) << p.name << " " << i;
      ASSERT_NEAR(read(lars.moment(0, p), i), books[p.name].m[k], tolerance) << p.name;
    }
  ASSERT_EQ(lars.moment_names().size(), 1u);
}

TEST(Optimizer, LarsEqualsTheTextbook) {
  check_lars("fp64", 1e-14);
  check_lars("fp32", 5 * 10 * 4 * 0x1p-24);
  check_lars("bf16-mixed", 5 * 10 * 4 * 0x1p-24);
}

/// Logical masters after five updates on one rank of a layout, with gradients that are functions of
/// the logical element; NaN for elements that the rank does not have.
std::map<std::string, std::vector<double>> rounded_masters(const GptConfig& model,
                                                           const Layout& layout, int rank,
                                                           int stage) {
  EngineOptions options = test::engine_options(model, "bf16-true", 1);
  options.rate_scales = {{"*.1.*qkv*", 0.25}, {"*norm*t", 2}};
  options.zero = {.stage = stage};
  const auto mesh = Mesh::planned(layout, rank, layout.ranks());
  test::EngineRun run(options, *mesh);
  ModelInstance& instance = run.engine().instance();
  const ParameterStorage& storage = instance.storage();
  // f(logical element, index in the rank's part) for each element that the rank owns.
  const auto for_owned = [&](const Parameter& p, const auto& f) {
    const Range owned = storage.owned(p);
    for (const ShardRun& part : shard_runs(p)) {
      const Range here = overlap({part.local, part.count}, owned);
      for (std::int64_t i = here.first; i < here.end(); ++i)
        f(part.logical + i - part.local, i - owned.first);
    }
  };
  for (int t = 1; t <= 5; ++t) {
    for (const Parameter& p : instance.parameters().parameters()) {
      const TensorView gradient = storage.owned_part(storage.gradients(storage.bucket_of(p)), p);
      const PhiloxKey key = philox_key(static_cast<std::uint64_t>(t), p.name);
      for_owned(p, [&](std::int64_t element, std::int64_t i) {
        gradient.as<float>()[i] =
            static_cast<float>(normal_at(key, static_cast<std::uint64_t>(element)));
      });
    }
    const ops::StepControl control = test::applied(t, kRate, 0.375, kBeta1, kBeta2);
    run.engine().optimizer().step(instance.stream(), &control);
  }
  std::map<std::string, std::vector<double>> masters;
  for (const Parameter& p : instance.parameters().parameters()) {
    const TensorView own = storage.owned_part(storage.masters(storage.bucket_of(p)), p);
    std::vector<double>& logical = masters[p.name];
    logical.assign(static_cast<std::size_t>(p.count()), NAN);
    for_owned(p, [&](std::int64_t element, std::int64_t i) {
      logical[static_cast<std::size_t>(element)] = read(own, i);
    });
  }
  return masters;
}

// Equal bits of gradients give equal bits of weights: the direction in which an update is rounded
// belongs to the element, on every rank of every layout.
TEST(Optimizer, RandomRoundingKnowsNoLayout) {
  GptConfig narrow = test::tiny_llama();
  narrow.n_kv_head = 1, narrow.n_embd = 24, narrow.ffn_width = 20;
  for (const GptConfig& model : {test::tiny_gpt(), narrow}) {
    const auto one = rounded_masters(model, Layout(), 0, 0);
    for (const Layout& layout : {Layout(2, 1, 1, 1), Layout(4, 1, 1, 1), Layout(1, 1, 3, 1),
                                 Layout(2, 1, 2, 1), Layout(4, 1, 2, 1)})
      for (const int stage : {0, 1, 2, 3}) {
        std::map<std::string, std::vector<double>> seen = one;
        for (auto& [name, values] : seen) values.assign(values.size(), NAN);
        for (int rank = 0; rank < layout.ranks(); ++rank)
          for (const auto& [name, values] : rounded_masters(model, layout, rank, stage))
            for (std::size_t i = 0; i < values.size(); ++i) {
              if (std::isnan(values[i])) continue;
              seen[name][i] = values[i];
              ASSERT_EQ(values[i], one.at(name)[i])
                  << name << " " << i << " on rank " << rank << " of " << layout.to_string()
                  << " stage " << stage;
            }
        for (const auto& [name, values] : seen)
          EXPECT_TRUE(test::same_bits(values, one.at(name))) << name << ": every element is owned";
      }
  }
}

// Padding, which belongs to no tensor, stays zero through training: values, masters, gradients.
TEST(Optimizer, PaddingStaysZero) {
  for (const char* precision : {"fp64", "bf16-mixed", "bf16-true", "fp16-mixed"}) {
    test::SingleRank single;
    test::EngineRun run(test::engine_options(test::tiny_gpt(), precision, 2, true), *single.mesh);
    run.losses(5);
    ParameterStorage& storage = run.engine().instance().storage();
    for (const Bucket& bucket : storage.parameters().buckets()) {
      std::vector<bool> used(static_cast<std::size_t>(bucket.size), false);
      for (const Parameter* p : bucket.parameters)
        for (std::int64_t i = 0; i < p->count(); ++i)
          used[static_cast<std::size_t>(p->offset + i)] = true;
      for (std::int64_t i = 0; i < bucket.size; ++i) {
        if (used[static_cast<std::size_t>(i)]) continue;
        ASSERT_EQ(read(storage.masters(bucket), i), 0) << bucket.name << " " << i;
        ASSERT_EQ(read(storage.gradients(bucket), i), 0) << bucket.name << " " << i;
        if (!storage.copies(bucket).empty()) {
          ASSERT_EQ(read(storage.copies(bucket), i), 0) << bucket.name << " " << i;
        }
      }
    }
  }
}

}  // namespace
}  // namespace choir
