// Tests of the rows that modules keep for streams: they are equal to those in a list of all rows.
#include "choir/nn/stream_state.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "src/device/cpu_device.hpp"
#include "src/nn/layers/blocks.hpp"
#include "test/support/context_case.hpp"
#include "test/unit/train/engine_case.hpp"

namespace choir {
namespace {

struct StreamStateTest : ::testing::Test {
  static constexpr std::int64_t kWidth = 3;
  CpuDevice device;
  Arena arena{device, 1 << 20};
  Pass pass{Stream(device), arena, precision_of("fp64"), 1};
  const int module = 0, other = 0;

  /// The next `count` rows of every stream: element = stream * 1000 + position * 10 + column.
  StreamState::Rows bring(StreamState& state, const void* to, std::int64_t count) {
    pass.begin(Mode::generate, state.next(count), 0);
    // Rows have the stride of keys and values within rows of queries, keys and values.
    const std::int64_t stride = kWidth + 2;
    Tensor x = pass.allocate({state.streams() * count, stride}, "x");
    for (std::int64_t row = 0; row < x.shape.rows(); ++row)
      for (std::int64_t c = 0; c < kWidth; ++c)
        x.as<double>()[row * stride + c] =
            element(row / count, pass.sequence().first_position + row % count, c);
    return state.append(pass, to, {x.data, stride});
  }
  static double element(std::int64_t stream, std::int64_t position, std::int64_t column) {
    return static_cast<double>(stream * 1000 + position * 10 + column);
  }
  /// The newest of all rows up to `seen`; rows before the beginning of the stream are zero.
  static void expect_rows(const StreamState& state, const StreamState::Rows& rows,
                          std::int64_t seen) {
    const std::int64_t count = rows.first.shape[0];
    for (std::int64_t b = 0; b < state.streams(); ++b)
      for (std::int64_t i = 0; i < count; ++i)
        for (std::int64_t c = 0; c < kWidth; ++c) {
          const std::int64_t position = seen - count + i;
          EXPECT_EQ(rows.first.as<double>()[b * rows.stride + i * kWidth + c],
                    position < 0 ? 0 : element(b, position, c))
              << "stream " << b << " position " << position;
        }
  }
};

TEST_F(StreamStateTest, NewestRowsSlide) {
  for (const std::int64_t streams : {1, 3}) {
    StreamState state(streams);
    state.add(pass, &module, {.width = kWidth, .most = 5, .chunk = 4}, "newest");
    state.add(pass, &other, {.width = kWidth, .most = 2, .chunk = 4, .zeros = 2}, "padded");
    for (int stream = 0; stream < 2; ++stream) {
      state.begin(pass.stream());
      for (const std::int64_t count : {4, 1, 4, 3, 4, 4, 2, 1, 1, 4}) {
        const std::int64_t seen = state.seen() + count;
        const StreamState::Rows rows = bring(state, &module, count);
        EXPECT_EQ(rows.first.shape[0], std::min<std::int64_t>(state.seen(), 5) + count);
        expect_rows(state, rows, seen);
        const StreamState::Rows padded = bring(state, &other, count);
        EXPECT_EQ(padded.first.shape[0], 2 + count);
        expect_rows(state, padded, seen);
        state.advance(count);
      }
    }
    EXPECT_THROW(bring(state, &module, 5), Error) << "more than a chunk";
  }
  EXPECT_EQ(arena.live(), 0u);
}

TEST_F(StreamStateTest, AllRowsUpToACapacity) {
  StreamState state(2);
  state.add(pass, &module, {.width = kWidth, .most = 8}, "all");
  state.begin(pass.stream());
  for (const std::int64_t count : {3, 1, 4}) {
    const StreamState::Rows rows = bring(state, &module, count);
    EXPECT_EQ(rows.first.shape[0], state.seen() + count);
    state.advance(count);
    expect_rows(state, rows, state.seen());
  }
  EXPECT_THROW(bring(state, &module, 1), Error) << "no room";
  state.begin(pass.stream());
  EXPECT_EQ(state.seen(), 0);
  EXPECT_EQ(bring(state, &module, 8).first.shape[0], 8);
}

// A plan need not store the rows of all positions: pretend() gives the memory that the last
// position needs.
TEST_F(StreamStateTest, PretendsToHaveSeenPositions) {
  for (const std::int64_t chunk : {0, 1}) {
    const StreamState::Track track{.width = kWidth, .most = chunk > 0 ? 4 : 10, .chunk = chunk};
    StreamState real(2), pretended(2);
    for (StreamState* state : {&real, &pretended}) {
      state->add(pass, &module, track, "rows");
      state->begin(pass.stream());
    }
    for (int position = 0; position < 9; ++position) {
      bring(real, &module, 1);
      real.advance(1);
    }
    pretended.pretend(9);
    EXPECT_EQ(pretended.seen(), 9);
    const StreamState::Rows rows = bring(pretended, &module, 1);
    EXPECT_EQ(rows.first.shape[0], chunk > 0 ? 5 : 10);
    EXPECT_EQ(rows.first.shape[0], bring(real, &module, 1).first.shape[0]);
    pretended.begin(pass.stream());
    EXPECT_EQ(bring(pretended, &module, 1).first.shape[0], 1) << "and a new stream begins";
  }
}

TEST_F(StreamStateTest, MisuseIsCaught) {
  StreamState state(1);
  state.add(pass, &module, {.width = kWidth, .most = 8}, "all");
  EXPECT_THROW(state.add(pass, &module, {.width = kWidth, .most = 8}, "again"), Error);
  EXPECT_THROW(state.add(pass, &other, {.width = kWidth, .most = 1, .zeros = 2}, "x"), Error);
  state.begin(pass.stream());
  bring(state, &module, 1);
  EXPECT_THROW(bring(state, &module, 1), Error) << "the same positions twice";
  state.advance(2);
  EXPECT_THROW(bring(state, &module, 1), Error) << "positions that the module has not seen";
  EXPECT_THROW(pass.begin(Mode::train, state.next(1), 0), Error) << "streams in training";
}

// Two streams through a block, two frames at a time, each of which sees two earlier ones: the
// results are the rows of a pass over all frames.
TEST(StreamBlock, StreamsGoOnTogether) {
  constexpr std::int64_t kStreams = 2, kFrames = 8, kChunk = 2, kLeft = 2, kChannels = 12;
  CpuDevice device;
  test::SingleRank single;
  test::RankOfContext rank(device, *single.mesh, "fp64", false);
  rank.parameters().begin_bucket("block");
  ConformerBlock block(rank.parameters(), "block",
                       {.width = kChannels,
                        .hidden = 24,
                        .heads = 3,
                        .kernel = 5,
                        .causal = true,
                        .context = {.left = kLeft / kChunk, .right = -1, .chunk = kChunk}});
  rank.place();
  Pass& of = rank.pass();
  const Tensor tables =
      of.allocate_statistic({ops::relative_position_table_size(kChannels)}, "tables");
  ops::make_relative_position_tables(of.stream(), kChannels, tables);
  const auto positions = [&](std::int64_t frames) {
    Tensor table = of.allocate({2 * frames - 1, kChannels}, "positions");
    ops::relative_positions(of.stream(), tables, table);
    return table;
  };
  /// Frames [first, first + count) of all streams.
  const auto frames = [&](std::int64_t first, std::int64_t count) {
    Tensor x = of.allocate({kStreams * count, kChannels}, "x");
    for (std::int64_t i = 0; i < x.count(); ++i) {
      const std::int64_t row = i / kChannels, frame = row / count * kFrames + first + row % count;
      x.as<double>()[i] = test::value_at("x", frame * kChannels + i % kChannels);
    }
    return x;
  };
  of.begin(Mode::evaluate, {.batch = kStreams, .tokens = kFrames}, 0);
  const Tensor whole = block.forward(of, frames(0, kFrames), positions(kFrames));
  StreamState state(kStreams);
  block.remember(of, state, kLeft, kChunk, positions(kLeft + kChunk));
  for (int again = 0; again < 2; ++again) {
    state.begin(of.stream());
    for (std::int64_t first = 0; first < kFrames; first += kChunk) {
      of.begin(Mode::generate, state.next(kChunk), 0);
      const Tensor y = block.forward(of, frames(first, kChunk), {});
      state.advance(kChunk);
      for (std::int64_t i = 0; i < y.count(); ++i) {
        const std::int64_t row = i / kChannels;
        const std::int64_t frame = row / kChunk * kFrames + first + row % kChunk;
        EXPECT_NEAR(y.as<double>()[i], whole.as<double>()[frame * kChannels + i % kChannels], 1e-12)
            << "stream " << row / kChunk << " chunk from " << first;
      }
    }
  }
}

}  // namespace
}  // namespace choir
