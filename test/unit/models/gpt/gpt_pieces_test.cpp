// Tests that a model cut into pieces, which run in any order that a schedule may choose, is equal
// to the whole model, bit by bit.
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "test/unit/models/pieces_case.hpp"

namespace choir {
namespace {

using test::Chain;
using test::cuts;
using test::PieceCut;
using test::uncut;

constexpr int kMicroBatches = 3;

GptConfig gpt() {
  GptConfig c = test::tiny_gpt();
  c.n_layer = 3;
  c.dropout = 0.2;
  return c;
}
GptConfig llama() {
  GptConfig c = test::tiny_llama();
  c.n_layer = 3;
  return c;
}
GptConfig tiled(GptConfig c, int tiles, Recompute recompute) {
  c.tile = tiles;
  c.recompute = recompute;
  return c;
}
GptConfig tied_rope() {
  GptConfig c = llama();
  c.tied = true;
  return c;
}

/// Letters of F, B and W with the number of a micro-batch. W: weight gradients are postponed.
void run(Chain& chain, const std::string& order) {
  const bool postponed = order.find('W') != std::string::npos;
  for (std::size_t i = 0; i < order.size(); i += 2) {
    const int m = order[i + 1] - '0';
    if (order[i] == 'F') chain.forward(m, postponed);
    if (order[i] == 'B') chain.backward(m);
    if (order[i] == 'W') chain.weight_gradients(m);
  }
  chain.check_idle();
}

constexpr const char* kOneAfterAnother = "F0B0F1B1F2B2";
const std::vector<std::string> kOrders{kOneAfterAnother, "F0F1F2B0B1B2", "F0F1B0F2B1B2",  // 1F1B
                                       "F0B0W0F1B1W1F2B2W2", "F0F1B0F2B1W0B2W1W2"};       // ZB-H1

/// The micro-batches of `order` under `cut`, compared with those of the whole model one after
/// another.
void expect_same(const GptConfig& config, const char* precision, const PieceCut& cut, Chain& whole,
                 const std::string& order) {
  Chain chain(config, precision, cut, kMicroBatches);
  run(chain, order);
  const std::string what = std::string(precision) + ", " + to_string(cut) + ", " + order;
  for (int m = 0; m < kMicroBatches; ++m)
    EXPECT_TRUE(test::same_bits(chain.losses(m), whole.losses(m)))
        << what << ": losses differ by " << test::distance(chain.losses(m), whole.losses(m));
  auto expected = whole.gradients(), found = chain.gradients();
  EXPECT_EQ(found.size(), expected.size()) << what;
  for (const auto& [name, gradient] : expected)
    EXPECT_TRUE(test::same_bits(gradient, found[name]))
        << what << ": " << name << " differs by " << test::distance(gradient, found[name]);
}

/// All cuts into 2 to 4 pieces: each piece on its own stage, two stages that take turns, and all on
/// one.
std::vector<PieceCut> all_cuts(const GptConfig& config) {
  std::vector<PieceCut> list;
  for (int parts = 2; parts <= 4; ++parts)
    for (auto& pieces : cuts(static_cast<int>(config.n_layer) + 2, parts))
      for (const int stages : std::set<int>{1, 2, parts}) list.push_back({pieces, stages});
  return list;
}

void expect_same_everywhere(const GptConfig& config, const char* precision) {
  const std::vector<PieceCut> list = all_cuts(config);
  ASSERT_EQ(list.size(), 2u * 4 + 3 * 6 + 3 * 4);
  Chain shared(config, precision, uncut(config), kMicroBatches);
  Chain separate(config, precision, uncut(config, true), kMicroBatches);
  run(shared, kOneAfterAnother);
  run(separate, kOneAfterAnother);
  std::size_t turn = 0;
  for (PieceCut cut : list) {
    // If the last piece is on the stage of the first, tied weights share memory.
    const bool together = (cut.pieces.size() - 1) % static_cast<std::size_t>(cut.stages) == 0;
    expect_same(config, precision, cut, together ? shared : separate,
                kOrders[turn++ % kOrders.size()]);
    if (!config.tied) continue;
    cut.separate_tied = true;
    expect_same(config, precision, cut, separate, kOrders[turn++ % kOrders.size()]);
  }
}

TEST(GptPieces, EqualTheWholeModelInFp64) {
  for (const GptConfig& config : {gpt(), llama(), tied_rope()})
    expect_same_everywhere(config, "fp64");
}

TEST(GptPieces, EqualTheWholeModelInLowerPrecisions) {
  expect_same_everywhere(gpt(), "bf16-mixed");
  expect_same_everywhere(llama(), "bf16-mixed");
  expect_same_everywhere(tied_rope(), "fp32");
}

TEST(GptPieces, EqualTheWholeModelInTiles) {
  expect_same_everywhere(tiled(gpt(), 4, Recompute::none), "fp64");
  expect_same_everywhere(tiled(llama(), 2, Recompute::selective), "fp64");
  expect_same_everywhere(tiled(gpt(), 2, Recompute::full), "bf16-mixed");
}

TEST(GptPieces, EveryOrderInOnePiece) {
  for (const GptConfig& config : {gpt(), llama()})
    for (const bool separate : {false, true}) {
      Chain whole(config, "fp64", uncut(config, separate), kMicroBatches);
      run(whole, kOneAfterAnother);
      for (const std::string& order : kOrders)
        expect_same(config, "fp64", uncut(config, separate), whole, order);
    }
}

// The tests above compare with the loss of one rank. Here it is compared with that of loss and
// backward.
TEST(GptPieces, TheWholeModelIsTheOneOfLossAndBackward) {
  const GptConfig config = gpt();
  Chain whole(config, "fp64", uncut(config), 1), other(config, "fp64", uncut(config), 1);
  run(whole, "F0B0");
  test::Stage& stage = other.stage(0);
  std::vector<std::int32_t> ids, targets;
  for (std::int64_t i = 0; i < 2 * config.block_size; ++i) {
    ids.push_back(test::token_at(i / config.block_size, i % config.block_size, config.vocab_size));
    targets.push_back(i == 3 ? -1
                             : test::token_at(i / config.block_size, i % config.block_size + 1,
                                              config.vocab_size));
  }
  const Shape shape{static_cast<std::int64_t>(ids.size())};
  stage.pass(0).begin(Mode::train, {.batch = 2, .tokens = config.block_size}, 0);
  std::vector<double> losses;
  {
    const Tensor out = stage.model().loss(stage.pass(0), {ids.data(), DType::i32, shape},
                                          {targets.data(), DType::i32, shape}, 1.0 / 9);
    losses.assign(out.as<double>(), out.as<double>() + out.count());
  }
  stage.model().backward(stage.pass(0), {ids.data(), DType::i32, shape});
  other.check_idle();
  EXPECT_TRUE(test::same_bits(losses, whole.losses(0)));
  EXPECT_EQ(whole.gradients(), other.gradients());
}

// The two parts of a tied weight's gradient add up to the one that a single rank computes.
TEST(GptPieces, PartsOfTheTiedGradientAddUp) {
  for (const GptConfig& config : {gpt(), tied_rope()}) {
    Chain shared(config, "fp64", uncut(config), kMicroBatches);
    Chain cut(config, "fp64", {{{0, 1}, {1, 3}, {4, 1}}, 3}, kMicroBatches);
    run(shared, kOneAfterAnother);
    run(cut, kOneAfterAnother);
    auto whole = shared.gradients(), parts = cut.gradients();
    EXPECT_FALSE(whole.contains("head.weight"));
    std::vector<double> sum = parts.at("embedding.tokens.weight");
    const std::vector<double>& head = parts.at("head.weight");
    ASSERT_EQ(sum.size(), head.size());
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += head[i];
    EXPECT_LE(test::distance(whole.at("embedding.tokens.weight"), sum), 1e-12);
    EXPECT_GT(test::distance(whole.at("embedding.tokens.weight"), head), 1e-3) << "or one is all";
  }
}

TEST(GptPieces, GradientsAreReadyInTheOrderOfBackward) {
  for (const GptConfig& config : {gpt(), llama(), tiled(llama(), 4, Recompute::none)})
    for (const bool separate : {false, true}) {
      Chain plain(config, "fp64", uncut(config, separate), 1);
      Chain split(config, "fp64", uncut(config, separate), 1);
      run(plain, "F0B0");
      split.forward(0, true);
      split.backward(0);
      EXPECT_TRUE(split.stage(0).ready().empty()) << "said before it was written";
      split.weight_gradients(0);
      EXPECT_EQ(plain.stage(0).ready(), split.stage(0).ready());
      const auto buckets = plain.stage(0).parameters().buckets().size();
      EXPECT_EQ(plain.stage(0).ready().size(), buckets) << "each once";
    }
}

TEST(GptPieces, EvaluationKeepsNothing) {
  const GptConfig config = gpt();
  Chain whole(config, "fp32", uncut(config), 1), cut(config, "fp32", {{{0, 2}, {2, 3}}, 2}, 1);
  for (Chain* chain : {&whole, &cut}) {
    chain->forward(0, false, Mode::evaluate);
    chain->check_idle();
  }
  EXPECT_TRUE(test::same_bits(whole.losses(0), cut.losses(0)));
}

TEST(GptPieces, GenerationIsTheSame) {
  const std::vector<std::int32_t> ids{3, 1, 4, 1, 5, 9, 2};
  for (const auto& [config, precision] : {std::pair{gpt(), "fp64"},
                                          {llama(), "bf16-mixed"},
                                          {tiled(gpt(), 2, Recompute::none), "fp64"}}) {
    Chain whole(config, precision, uncut(config), 1);
    std::map<std::size_t, std::vector<double>> expected;
    for (const std::size_t at_once : {1, 3, 7}) expected[at_once] = whole.generate(ids, at_once);
    EXPECT_EQ(expected[3].size(), 19u);
    whole.check_idle();
    for (const PieceCut& cut : all_cuts(config)) {
      Chain chain(config, precision, cut, 1);
      for (const auto& [at_once, logits] : expected)
        EXPECT_TRUE(test::same_bits(logits, chain.generate(ids, at_once))) << to_string(cut);
      chain.check_idle();
    }
  }
}

// Every stage counts the whole model and gives elements the same names.
TEST(GptPieces, DescriptionIsTheSameOnEveryStage) {
  for (const GptConfig& config : {gpt(), llama(), tiled(gpt(), 4, Recompute::none)})
    for (const TensorSplit split : {TensorSplit{}, TensorSplit{1, 2, true}})
      for (const PieceCut& cut : all_cuts(config)) {
        ParameterSet whole(split);
        const Gpt model(config, whole);
        whole.place(1);
        std::map<std::string, int> holders;
        for (int s = 0; s < cut.stages; ++s) {
          ModelCut own;
          for (std::size_t k = static_cast<std::size_t>(s); k < cut.pieces.size();
               k += static_cast<std::size_t>(cut.stages))
            own.pieces.push_back(cut.pieces[k]);
          ParameterSet set(split);
          const Gpt part(config, set, own);
          set.place(3);
          EXPECT_EQ(set.count(), whole.count());
          EXPECT_EQ(set.count_decayed(), whole.count_decayed());
          EXPECT_EQ(part.parameters_without_positions(), model.parameters_without_positions());
          EXPECT_EQ(part.flops_per_token(), model.flops_per_token());
          EXPECT_EQ(part.describe(), model.describe());
          ASSERT_EQ(set.all().size(), whole.all().size());
          for (std::size_t i = 0; i < set.all().size(); ++i) {
            const Parameter &a = *set.all()[i], &b = *whole.all()[i];
            EXPECT_EQ(a.name, b.name);
            EXPECT_EQ(a.offset, b.offset);
            EXPECT_EQ(a.local, b.local);
            holders[a.name] += a.resident();
            EXPECT_EQ(a.resident(),
                      a.bucket >= 0 &&
                          set.buckets()[static_cast<std::size_t>(a.bucket)].parameters.size() > 0);
          }
          const auto named = set.model_buckets(), expected = whole.model_buckets();
          ASSERT_EQ(named.size(), expected.size());
          for (std::size_t i = 0; i < named.size(); ++i) {
            EXPECT_EQ(named[i]->name, expected[i]->name);
            for (std::size_t j = 0; j < expected[i]->parameters.size(); ++j) {
              EXPECT_EQ(named[i]->parameters.at(j)->position, expected[i]->parameters[j]->position);
            }
          }
        }
        for (const auto& [name, count] : holders) EXPECT_EQ(count, 1) << name;
        EXPECT_EQ(holders.size(), whole.all().size());
      }
}

// A copy has the same elements, by name, index and value.
TEST(GptPieces, CopyOfATiedWeight) {
  for (const TensorSplit split : {TensorSplit{}, TensorSplit{1, 2, false}}) {
    ParameterSet first(split), last(split), both(split);
    const Gpt begin(gpt(), first, {.pieces = {{0, 2}}});
    const Gpt end(gpt(), last, {.pieces = {{2, 3}}});
    const Gpt separate(gpt(), both, {.pieces = {}, .separate_tied = true});
    for (ParameterSet* set : {&first, &last, &both}) {
      set->place(3);
      ASSERT_EQ(set->copies().size(), 1u);
      const Parameter& copy = *set->copies()[0];
      EXPECT_EQ(copy.name, "head.weight");
      EXPECT_EQ(copy.tied_to->name, "embedding.tokens.weight");
      EXPECT_EQ(copy.resident(), set != &first);
      EXPECT_EQ(copy.tied_to->resident(), set != &last);
    }
    const Bucket& tokens = both.buckets().front();
    const Bucket& head = both.buckets().back();
    EXPECT_EQ(tokens.name, "embedding.tokens");
    EXPECT_EQ(head.name, "head");
    EXPECT_EQ(tokens.size, head.size);
    EXPECT_EQ(tokens.decayed, head.decayed);
    EXPECT_EQ(tokens.parameters[0]->position, head.parameters[0]->position);
    EXPECT_EQ(last.buckets().back().parameters[0]->position, head.parameters[0]->position);
    EXPECT_EQ(both.flat_size(), head.offset + head.size);
    std::vector<double> one(static_cast<std::size_t>(tokens.size)), other(one);
    const Parameter &a = *tokens.parameters[0], &b = *last.buckets().back().parameters[0];
    initialise(a, 5, {one.data(), DType::f64, a.local});
    initialise(b, 5, {other.data(), DType::f64, b.local});
    EXPECT_EQ(one, other);
    EXPECT_NE(one, std::vector<double>(one.size()));
  }
}

TEST(GptPieces, MisuseIsCaught) {
  ParameterSet set;
  EXPECT_THROW(Gpt(gpt(), set, {.pieces = {{0, 6}}}), Error) << "more units than there are";
  ParameterSet overlap;
  EXPECT_THROW(Gpt(gpt(), overlap, {.pieces = {{0, 2}, {1, 2}}}), Error);
  const GptConfig config = gpt();
  Chain chain(config, "fp64", {{{0, 2}, {2, 3}}, 2}, 1);
  test::Stage& last = chain.stage(1);
  Pass& pass = last.pass(0);
  pass.begin(Mode::evaluate, {.batch = 1, .tokens = 4}, 0);
  EXPECT_THROW(last.model().forward(pass, 0, Tensor(), {}), Error) << "no input";
  EXPECT_THROW(last.model().forward(pass, 0, pass.allocate({3, config.n_embd}, "short"), {}),
               Error);
  EXPECT_THROW(last.model().forward(pass, 1, Tensor(), {}), Error) << "no such piece";
  EXPECT_THROW(last.model().next_logits(pass, {}), Error) << "not the whole model";
  EXPECT_THROW(last.model().weight_gradients(pass, 0), Error) << "nothing waits";
}

// Narayanan et al. 2021, appendix: forward has 24 B s h^2 + 4 B s^2 h per layer and 2 B s h V for
// the head; a causal mask leaves half of the second term.
TEST(GptPieces, CostsOfUnits) {
  const GptConfig gpt3{.vocab_size = 51200,
                       .block_size = 2048,
                       .n_layer = 96,
                       .n_head = 96,
                       .n_kv_head = 96,
                       .n_embd = 12288,
                       .ffn_width = 4 * 12288};
  const double s = 2048, h = 12288, v = 51200;
  const UnitCosts costs = Gpt::unit_costs(gpt3, 3 * 2048);
  EXPECT_DOUBLE_EQ(costs[1], 3 * (24 * s * h * h + 2 * s * s * h));
  EXPECT_DOUBLE_EQ(costs.back(), 3 * 2 * s * h * v);
  EXPECT_GT(costs.front(), 0);
  EXPECT_LT(costs.front(), 1e-4 * costs[1]);
  // SwiGLU has three matrices; two groups of keys and values for eight heads.
  const GptConfig small{.vocab_size = 100,
                        .block_size = 16,
                        .n_layer = 1,
                        .n_head = 8,
                        .n_kv_head = 2,
                        .n_embd = 64,
                        .ffn_width = 96,
                        .activation = ops::Activation::swiglu};
  EXPECT_DOUBLE_EQ(Gpt::unit_costs(small, 1)[1],
                   2 * (64 * (64 + 16 + 16) + 64 * 64 + 3 * 64 * 96) + 2 * 16 * 64);
}

}  // namespace
}  // namespace choir
