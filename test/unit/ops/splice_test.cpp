#include <omp.h>

#include <numeric>

#include "choir/core/error.hpp"
#include "kernels/embedding/embedding.hpp"
#include "test/support/gradcheck.hpp"
#include "test/support/splice_case.hpp"

namespace choir::test {
namespace {

TEST(Splice, MatchesTheReference) {
  CpuDevice cpu;
  for (const DType dtype : kElementTypes)
    for (const std::int64_t width : {1, 7, 16, 65}) {
      SpliceCase{dtype, 40, 20, 0, 20, width}.check(cpu);
      SpliceCase{dtype, 40, 20, 8, 6, width}.check(cpu);   // a share of the audio
      SpliceCase{dtype, 40, 20, 20, 4, width}.check(cpu);  // only padding
    }
  SpliceCase{DType::bf16, 700, 301, 0, 301, 64}.check(cpu);  // by several threads
}

// Clips of 4, 2, 1 and 3 frames, padded to 4, in rows of 8: speechlm2 of NeMo makes these rows.
TEST(Splice, ThreeConversations) {
  CpuBench cpu;
  const std::vector<std::int32_t> rows{1, 5, -1, -2, -3, -4, 6, 7,   1,   -5,  -6, 8,
                                       0, 0, 0,  0,  1,  -9, 9, -13, -14, -15, 10, 0};
  HostTensor index(DType::i32, {24});
  for (std::size_t i = 0; i < rows.size(); ++i)
    index.set(static_cast<std::int64_t>(i), static_cast<double>(rows[i]));
  HostTensor table(DType::f64, {11, 1}), audio(DType::f64, {16, 1}), out(DType::f64, {24, 1});
  for (std::int64_t i = 0; i < 11; ++i) table.set(i, static_cast<double>(100 + i));
  for (std::int64_t i = 0; i < 16; ++i) audio.set(i, static_cast<double>(-1 - i));
  ops::embedding_forward(cpu.stream, {.ids = index, .table = table, .out = out, .spliced = true});
  ops::splice_forward(cpu.stream, {.index = index, .audio = audio, .out = out});
  for (std::int64_t i = 0; i < 24; ++i) {
    const std::int32_t at = rows[static_cast<std::size_t>(i)];
    EXPECT_EQ(out[i], at >= 0 ? 100 + at : at) << i;
  }
  // Backward is a copy by the inverse index; frames 6, 7, 9 to 11 and 15 are padding.
  HostTensor d_out(DType::f64, {24, 1}), d_audio = HostTensor::filled(DType::f64, {16, 1}, 9);
  for (std::int64_t i = 0; i < 24; ++i) d_out.set(i, static_cast<double>(i));
  ops::splice_backward(cpu.stream, {.index = index, .d_out = d_out, .d_audio = d_audio});
  const std::vector<double> expected{2, 3, 4, 5, 9, 10, 0, 0, 17, 0, 0, 0, 19, 20, 21, 0};
  for (std::int64_t i = 0; i < 16; ++i)
    EXPECT_EQ(d_audio[i], expected[static_cast<std::size_t>(i)]) << i;
}

TEST(Splice, BackwardIsTheTransposeOfForward) {
  CpuBench cpu;
  const SpliceCase c{DType::f64, 30, 12, 0, 12, 5};
  const HostTensor index = c.index(), w = HostTensor::normal(DType::f64, {30, 5}, 4);
  HostTensor audio = HostTensor::normal(DType::f64, {12, 5}, 2), d_audio(DType::f64, {12, 5});
  const auto loss = [&] {
    HostTensor out = HostTensor::filled(DType::f64, {30, 5}, 0);
    ops::splice_forward(cpu.stream, {.index = index, .audio = audio, .out = out});
    return dot(out, w);
  };
  ops::splice_backward(cpu.stream, {.index = index, .d_out = w, .d_audio = d_audio});
  expect_gradient(d_audio, audio, loss, "splice to audio");
}

// The shares of all ranks add up to the whole, to the bit: all terms but one are zero.
TEST(Splice, SharesOfTheAudioAddUp) {
  CpuBench cpu;
  const SpliceCase c{DType::f64, 40, 18, 0, 18, 5};
  const HostTensor index = c.index(), audio = HostTensor::normal(DType::f64, {18, 5}, 2);
  HostTensor whole = HostTensor::filled(DType::f64, {40, 5}, 0), parts = whole;
  ops::splice_forward(cpu.stream, {.index = index, .audio = audio, .out = whole});
  for (std::int64_t first = 0; first < 18; first += 6)
    ops::splice_forward(cpu.stream, {.index = index,
                                     .audio = audio.view().slice(first, 6),
                                     .out = parts,
                                     .first_audio = first,
                                     .all_audio = 18});
  for (std::int64_t i = 0; i < whole.count(); ++i) ASSERT_EQ(whole[i], parts[i]) << i;
}

TEST(Splice, RefusesAudioThatIsNotThere) {
  CpuBench cpu;
  HostTensor index = HostTensor::filled(DType::i32, {3}, 0);
  index.set(1, -5);
  const HostTensor audio = HostTensor::filled(DType::f32, {4, 2}, 1);
  HostTensor out = HostTensor::filled(DType::f32, {3, 2}, 0);
  EXPECT_THROW(ops::splice_forward(cpu.stream, {.index = index, .audio = audio, .out = out}),
               Error);
  const HostTensor narrow = HostTensor::filled(DType::f32, {8, 1}, 1);
  EXPECT_THROW(ops::splice_forward(cpu.stream, {.index = index, .audio = narrow, .out = out}),
               Error);
}

}  // namespace
}  // namespace choir::test
