// Tests of sequences that are shared by ranks: attention and a whole model are compared with one
// rank that each process runs alone.
#include <gtest/gtest.h>

#include <algorithm>

#include "choir/core/error.hpp"
#include "src/device/cpu_device.hpp"
#include "src/device/null_device.hpp"
#include "test/support/context_case.hpp"
#include "test/support/mpi_test.hpp"
#include "test/unit/train/engine_case.hpp"

namespace choir {
namespace {

constexpr double kTolerance = 1e-12;

/// Layouts of all ranks: context alone, and with tensor, in both orders.
std::vector<Layout> layouts() {
  const int n = test::world_size();
  std::vector<Layout> list{Layout(1, n, 1, 1)};
  if (n == 4) list.insert(list.end(), {Layout(2, 2, 1, 1), Layout(2, 2, 1, 1, "cp-tp-dp-pp")});
  return list;
}

struct Names {
  std::string text;
  explicit Names(const test::AttentionContextCase& c, const Layout& layout)
      : text(fmt::format("{}: mode {} of {} T {} kv {} rope {} dropout {} window {} sequence {}",
                         layout.to_string(), static_cast<int>(c.way.mode), c.way.group, c.tokens,
                         c.options.kv_heads, c.options.rope, c.options.dropout, c.options.window,
                         c.sequence)) {}
};

double distance(const test::ContextResult& a, const test::ContextResult& b) {
  return std::max({test::distance(a.outputs, b.outputs),
                   test::distance(a.input_gradients, b.input_gradients),
                   test::distance(a.gradients, b.gradients)});
}

test::ContextResult on_one_rank(test::AttentionContextCase c) {
  c.sequence = false, c.over_replicas = true;
  CpuDevice device;
  test::SingleRank single;
  return c.run(device, *single.mesh);
}

/// All ways in which ranks can share the positions of a model with this many heads per tensor rank.
std::vector<ContextWay> ways(std::int64_t heads, std::int64_t ranks) {
  std::vector<ContextWay> list{{ContextMode::gather}, {ContextMode::ring}};
  using enum RequestedContextMode;
  for (const RequestedContextMode wanted : {automatic, ring_ulysses})
    if (const ContextWay way = context_way_of(wanted, heads, ranks);
        std::find(list.begin(), list.end(), way) == list.end())
      list.push_back(way);
  return list;
}

void expect_equal(test::AttentionContextCase c) {
  const test::ContextResult one = on_one_rank(c);
  for (const Layout& layout : layouts())
    for (const bool sequence : {false, true})
      for (const ContextWay& way :
           ways(c.options.heads / layout.size(Axis::tensor), layout.size(Axis::context))) {
        c.way = way;
        c.sequence = sequence;
        const int tensor = layout.size(Axis::tensor);
        if ((sequence && tensor == 1) || c.options.heads % tensor != 0) continue;
        // The tensor axis divides K/V heads or copies them; a context axis accepts any number.
        if (c.options.kv_heads % tensor != 0 && c.options.kv_heads != 1) continue;
        CpuDevice device;
        const auto mesh = Mesh::over_world(layout, Transport::automatic);
        const test::ContextResult many = c.run(device, *mesh);
        EXPECT_ALL_RANKS(distance(one, many) <= kTolerance)
            << Names(c, layout).text << ": outputs " << test::distance(one.outputs, many.outputs)
            << " input gradients " << test::distance(one.input_gradients, many.input_gradients)
            << " gradients " << test::distance(one.gradients, many.gradients);
      }
}

// 12 query heads: with 3 ranks and 2 K/V heads a rank reads parts of two groups.
TEST(ContextAttention, EqualsOneRankForAnyGroupsOfHeads) {
  for (const std::int64_t kv_heads : {12, 6, 4, 3, 2, 1})
    expect_equal({.options = {.width = 48, .heads = 12, .kv_heads = kv_heads}});
}

// 8 can be divided among 2 and 4 ranks; with 5 positions on 4 ranks the last one has only padding;
// with 1 most ranks have only padding.
TEST(ContextAttention, EqualsOneRankForAnyLength) {
  for (const std::int64_t tokens : {1, 2, 5, 8, 9})
    for (const bool rope : {false, true})
      expect_equal(
          {.tokens = tokens, .options = {.width = 48, .heads = 12, .kv_heads = 2, .rope = rope}});
  expect_equal({.batch = 1, .options = {.width = 48, .heads = 12, .kv_heads = 12}});
}

// There are more ranks than heads, or the number of ranks does not divide them.
TEST(ContextAttention, EqualsOneRankForAnyNumberOfHeads) {
  for (const std::int64_t heads : {1, 2, 3})
    for (const std::int64_t tokens : {3, 7, 17})
      expect_equal({.tokens = tokens,
                    .options = {.width = 48, .heads = heads, .kv_heads = 1, .rope = true}});
  // With 4 ranks a ring of pairs: K/V heads that pairs divide, and copies of them.
  for (const std::int64_t kv_heads : {6, 3, 2})
    expect_equal(
        {.tokens = 17,
         .options = {.width = 48, .heads = 6, .kv_heads = kv_heads, .rope = true, .dropout = 0.3}});
}

TEST(ContextAttention, EqualsOneRankUnderAWindow) {
  for (const std::int64_t window : {1, 3, 6, 40})
    expect_equal(
        {.tokens = 17,
         .options = {.width = 48, .heads = 12, .kv_heads = 4, .window = window, .rope = true}});
  expect_equal({.tokens = 17,
                .options = {.width = 48, .heads = 6, .kv_heads = 2, .window = 5, .rope = true}});
}

TEST(ContextAttention, DropsTheSameFeatures) {
  for (const bool bias : {false, true})
    expect_equal(
        {.options = {
             .width = 48, .heads = 12, .kv_heads = 1, .bias = bias, .rope = true, .dropout = 0.3}});
}

TEST(ContextAttention, ThePlanIsExact) {
  for (const Layout& layout : layouts())
    for (const ContextWay& way : ways(6 / layout.size(Axis::tensor), layout.size(Axis::context))) {
      const test::AttentionContextCase c{.options = {.width = 48, .heads = 6, .kv_heads = 2},
                                         .way = way};
      CpuDevice device;
      NullDevice null;
      const auto mesh = Mesh::over_world(layout, Transport::automatic);
      const auto planned = Mesh::planned(layout, mesh->rank(), 1);
      const std::size_t used = c.peak(device, *mesh), plan = c.peak(null, *planned);
      EXPECT_ALL_RANKS(used == plan) << used << " bytes used, " << plan << " planned";
      const CommTraffic &sent = mesh->along(Axis::context).traffic(),
                        &counted = planned->along(Axis::context).traffic();
      EXPECT_ALL_RANKS(sent.calls == counted.calls && sent.bytes == counted.bytes)
          << sent.bytes << " bytes sent, " << counted.bytes << " planned";
      const int n = layout.size(Axis::context);
      const int calls = way.mode == ContextMode::ulysses  ? 4
                        : way.mode == ContextMode::gather ? 3
                        : way.group == 1                  ? 3 * n - 2
                                                          : 4 + 3 * n / 2 - 2;
      EXPECT_EQ(sent.calls, layout.size(Axis::context) > 1 ? calls : 0)
          << "one message a direction; two gathers and a sum of gradients; two rounds of keys and "
             "one of gradients; or the first and the last, in and among pairs";
    }
}

// --- negative controls: a broken rule is detected ----------------------------------------------

TEST(ContextAttention, GradientsLeftUnsummedAreSeen) {
  if (test::world_size() == 1) GTEST_SKIP() << "needs another rank";
  test::AttentionContextCase c{.options = {.width = 48, .heads = 12, .kv_heads = 2}};
  const test::ContextResult one = on_one_rank(c);
  c.over_replicas = false;
  CpuDevice device;
  const auto mesh = Mesh::over_world(Layout(1, test::world_size(), 1, 1), Transport::automatic);
  const test::ContextResult many = c.run(device, *mesh);
  EXPECT_ALL_RANKS(test::distance(one.outputs, many.outputs) <= kTolerance);
  EXPECT_ALL_RANKS(test::distance(one.gradients, many.gradients) > 1e-3);
}

TEST(ContextAttention, PositionsOfAnotherRankAreRefused) {
  if (test::world_size() == 1) GTEST_SKIP() << "needs another rank";
  CpuDevice device;
  const auto mesh = Mesh::over_world(Layout(1, test::world_size(), 1, 1), Transport::automatic);
  test::RankOfContext rank(device, *mesh, "fp64", false);
  Pass& pass = rank.pass();
  const Sequence right = share_of_sequences(2, 9, pass.context());
  Sequence wrong = right;
  wrong.first_position += 1;
  EXPECT_THROW(pass.begin(Mode::train, wrong, 0), Error);
  wrong = right, wrong.whole_tokens = 0;
  EXPECT_THROW(pass.begin(Mode::train, wrong, 0), Error);
  pass.begin(Mode::train, right, 0);
  pass.begin(Mode::generate, {.batch = 1, .tokens = 9}, 0);
  EXPECT_FALSE(pass.shares_positions());
}

// The gradients of copies of a head are added: the sum is the gradient of the original.
TEST(HeadExchange, ThereAndBackCountsCopies) {
  constexpr std::int64_t kHeads = 12, kWidth = 4, kTokens = 7, kBatch = 2;
  for (const std::int64_t kv_heads : {12, 4, 3, 2, 1}) {
    CpuDevice device;
    const auto mesh = Mesh::over_world(Layout(1, test::world_size(), 1, 1), Transport::automatic);
    test::RankOfContext rank(device, *mesh, "fp64", false);
    Pass& pass = rank.pass();
    pass.begin(Mode::train, share_of_sequences(kBatch, kTokens, pass.context()), 0);
    const HeadExchange exchange(pass, kHeads, kv_heads, kWidth);
    const Tensor x = pass.allocate({pass.sequence().rows(), (kHeads + 2 * kv_heads) * kWidth}, "x");
    for (std::int64_t i = 0; i < x.count(); ++i)
      x.as<double>()[i] = test::value_at("x", i * 8 + mesh->rank());
    const Tensor back = exchange.to_positions(exchange.to_heads(x, HeadExchange::Rows::qkv),
                                              HeadExchange::Rows::qkv);
    const auto copies = static_cast<double>(exchange.here().copies);
    bool right = true;
    for (std::int64_t i = 0; i < x.count(); ++i) {
      const bool query = i % x.shape.back() < kHeads * kWidth;
      const double expected = x.as<double>()[i] * (query ? 1 : copies);
      right &= std::abs(back.as<double>()[i] - expected) <= 4e-16 * copies * std::abs(expected);
    }
    EXPECT_ALL_RANKS(right) << kv_heads;
  }
}

// --- a whole model -----------------------------------------------------------------------------

constexpr std::int64_t kBatch = 2, kTokens = 7;

struct GptResult {
  double loss = 0;
  std::vector<double> losses, gradients;
};

std::int32_t id_at(std::int64_t sample, std::int64_t position) {
  return test::token_at(sample, position, 19);
}

/// Sum of losses over all tokens and its gradient; the data axis divides the batch. `padding`: the
/// target of positions that do not exist.
GptResult train_on(const GptConfig& config, Mesh& mesh, bool sequence, Mode mode = Mode::train,
                   std::int32_t padding = -1, const ContextWay& way = {}) {
  CpuDevice device;
  test::RankOfContext rank(device, mesh, "fp64", sequence, way);
  Gpt model(config, rank.parameters());
  rank.place();
  Pass& pass = rank.pass();
  const Buffer memory(device, model.table_bytes(pass.precision()));
  model.prepare(pass, memory.data());

  Communicator& data = mesh.along(Axis::data);
  const std::int64_t batch = kBatch / data.size(), first = data.rank() * batch;
  std::vector<std::int32_t> whole_ids, whole_targets;
  for (std::int64_t b = 0; b < batch; ++b)
    for (std::int64_t t = 0; t < kTokens; ++t) {
      whole_ids.push_back(id_at(first + b, t));
      whole_targets.push_back(t == 2 ? -1 : id_at(first + b, t + 1));  // one that is not counted
    }
  const Sequence held = share_of_sequences(batch, kTokens, pass.context());
  std::vector<std::int32_t> ids(static_cast<std::size_t>(held.rows())), targets(ids.size());
  for (int i = 0; i < held.runs(); ++i) {
    const Sequence::Run run = held.run(i);
    const PositionShare share = pass.context().share(kTokens, pass.context().rank(), i);
    const auto first_row = static_cast<std::size_t>(run.first_row);
    const auto rows = static_cast<std::size_t>(run.rows);
    cut_positions(whole_ids, kTokens, share, 0, std::span(ids).subspan(first_row, rows));
    cut_positions(whole_targets, kTokens, share, padding,
                  std::span(targets).subspan(first_row, rows));
  }
  const Shape shape{held.rows()};
  const TensorView id_view{ids.data(), DType::i32, shape};

  pass.begin(mode, held, first);
  const Tensor losses = model.loss(pass, id_view, {targets.data(), DType::i32, shape}, 0.25);
  GptResult result;
  result.losses.assign(static_cast<std::size_t>(kBatch * kTokens), 0.0);
  for (std::int64_t i = 0; i < shape.count(); ++i) {
    const Sequence::Run run = held.run(i < held.run(0).rows ? 0 : 1);
    const std::int64_t inside = i - run.first_row;
    const std::int64_t position = run.first_position + inside % run.tokens;
    result.loss += losses.as<double>()[i];
    if (position < kTokens)
      result.losses[static_cast<std::size_t>((first + inside / run.tokens) * kTokens + position)] =
          losses.as<double>()[i];
  }
  mesh.host_replicas().all_reduce(&result.loss, 1, DType::f64, ReduceOp::sum);
  mesh.host_replicas().all_reduce(result.losses.data(), result.losses.size(), DType::f64,
                                  ReduceOp::sum);
  if (mode != Mode::train) return result;
  model.backward(pass, id_view);
  result.gradients = rank.gradients();
  return result;
}

GptConfig gpt() {
  return {.vocab_size = 19,
          .block_size = kTokens,  // tables of positions end at the end of the sequences
          .n_layer = 2,
          .n_head = 12,
          .n_kv_head = 12,
          .n_embd = 48,
          .ffn_width = 96,
          .dropout = 0.2};
}

GptConfig llama(std::int64_t kv_heads) {
  GptConfig c = gpt();
  c.n_kv_head = kv_heads;
  c.bias = false;
  c.tied = false;
  c.norm = ops::Norm::rmsnorm;
  c.activation = ops::Activation::swiglu;
  c.position = Position::rope;
  return c;
}

TEST(ContextGpt, EqualsOneRank) {
  test::SingleRank single;
  std::vector<Layout> all = layouts();
  if (test::world_size() == 4)
    all.insert(all.end(), {Layout(1, 2, 2, 1), Layout(1, 2, 2, 1, "dp-cp-tp-pp")});
  GptConfig pairs = llama(2);  // of 4 ranks, in a ring
  pairs.n_head = 6;
  for (const GptConfig& config : {gpt(), llama(2), llama(1), pairs}) {
    const GptResult one = train_on(config, *single.mesh, false);
    const double evaluated = train_on(config, *single.mesh, false, Mode::evaluate).loss;
    ASSERT_ALL_RANKS(std::abs(one.loss - evaluated) > 1e-3) << "dropout is at work";
    for (const Layout& layout : all)
      for (const bool sequence : {false, true})
        for (const ContextWay& context :
             ways(config.n_head / layout.size(Axis::tensor), layout.size(Axis::context))) {
          if (sequence && layout.size(Axis::tensor) == 1) continue;
          const auto mesh = Mesh::over_world(layout, Transport::automatic);
          const GptResult many = train_on(config, *mesh, sequence, Mode::train, -1, context);
          EXPECT_ALL_RANKS(std::abs(one.loss - many.loss) <= kTolerance * one.loss);
          EXPECT_ALL_RANKS(test::distance(one.losses, many.losses) <= kTolerance);
          EXPECT_ALL_RANKS(test::distance(one.gradients, many.gradients) <= kTolerance)
              << layout.to_string() << " kv " << config.n_kv_head << ": "
              << test::distance(one.gradients, many.gradients);
          const double loss = train_on(config, *mesh, sequence, Mode::evaluate, -1, context).loss;
          EXPECT_ALL_RANKS(std::abs(loss - evaluated) <= kTolerance * evaluated);
        }
  }
}

TEST(ContextGpt, PaddingThatCountsIsSeen) {
  if (kTokens % test::world_size() == 0) GTEST_SKIP() << "needs padding";
  test::SingleRank single;
  const GptResult one = train_on(gpt(), *single.mesh, false);
  const auto mesh = Mesh::over_world(Layout(1, test::world_size(), 1, 1), Transport::automatic);
  const GptResult many = train_on(gpt(), *mesh, false, Mode::train, 0);
  EXPECT_ALL_RANKS(test::distance(one.losses, many.losses) <= kTolerance);
  EXPECT_ALL_RANKS(std::abs(one.loss - many.loss) > 0.1);
  EXPECT_ALL_RANKS(test::distance(one.gradients, many.gradients) > 1e-3);
}

// Every rank of the axis has all positions and computes the same as one rank, to the bit.
TEST(ContextGpt, GeneratesOnWholeSequences) {
  const auto logits = [](Mesh& mesh) {
    CpuDevice device;
    test::RankOfContext rank(device, mesh, "fp64", false);
    Gpt model(llama(2), rank.parameters());
    rank.place();
    Pass& pass = rank.pass();
    const Buffer memory(device, model.table_bytes(pass.precision()));
    model.prepare(pass, memory.data());
    std::vector<std::int32_t> ids;
    for (std::int64_t t = 0; t < kTokens; ++t) ids.push_back(id_at(0, t));
    pass.begin(Mode::generate, {.batch = 1, .tokens = kTokens}, 0);
    return rank.get(model.next_logits(pass, {ids.data(), DType::i32, {kTokens}}));
  };
  test::SingleRank single;
  const auto mesh = Mesh::over_world(Layout(1, test::world_size(), 1, 1), Transport::automatic);
  EXPECT_ALL_RANKS(test::same_bits(logits(*mesh), logits(*single.mesh)));
  EXPECT_EQ(mesh->along(Axis::context).traffic().calls, 0);
}

}  // namespace
}  // namespace choir
