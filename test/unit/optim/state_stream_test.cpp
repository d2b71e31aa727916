// Tests of chunks of offloaded state: the contents of a window, the chunks that are written back,
// and the messages of failures.
#include "src/optim/state_stream.hpp"

#include <gtest/gtest.h>

#include <cstring>

#include "choir/core/error.hpp"
#include "src/device/cpu_device.hpp"
#include "src/optim/state_stream.hpp"
#include "test/support/count_allocations.hpp"
#include "test/support/offload_case.hpp"
#include "test/support/separate_device.hpp"

namespace choir {
namespace {

constexpr std::int64_t kElements = 1000;

const std::vector<Range>& chunks() {
  static const std::vector<Range> list{{0, 300}, {300, 300}, {600, 300}, {900, 100}};
  return list;
}

void each_element_once(const OffloadOptions& options, Device& device) {
  test::SingleRank single;
  OffloadedState state(options, precision_of("bf16-mixed"), {.masters = true, .values = false},
                       {.masters = kElements, .values = kElements, .moments = kElements}, device,
                       single.mesh->world());
  EXPECT_FALSE(state.has(OffloadedState::value));
  constexpr std::array kFields{OffloadedState::master, OffloadedState::first_moment,
                               OffloadedState::second_moment};
  for (const auto field : kFields)
    for (std::int64_t i = 0; i < kElements; ++i)
      state.of(field).as<float>()[i] = static_cast<float>(10000 * field + i);
  const auto stream = StateStream::make(state, device, chunks());
  for (int round = 0; round < 3; ++round) {
    const std::int64_t before = test::allocations();
    stream->begin(Stream(device));
    for (const Range& chunk : chunks()) {
      const StateStream::Window window = stream->acquire();
      for (const auto field : kFields) {
        const TensorView& view = window[field];
        ASSERT_EQ(view.count(), chunk.count);
        float host[300];
        device.copy_to_host(host, view.data, view.bytes());
        for (std::int64_t i = 0; i < chunk.count; ++i) {
          const auto was = static_cast<float>(10000 * field + chunk.first + i + 100000 * round);
          ASSERT_EQ(host[i], was) << round << " " << field;
          host[i] += 100000;
        }
        device.copy_from_host(view.data, host, view.bytes());
      }
      stream->release();
    }
    stream->end();
    if (round > 0 && device.host_visible()) {
      EXPECT_EQ(test::allocations() - before, 0);
    }
  }
  for (const auto field : kFields)
    for (std::int64_t i = 0; i < kElements; ++i)
      ASSERT_EQ(state.of(field).as<float>()[i], static_cast<float>(10000 * field + i + 300000));
}

TEST(StateStream, ShowsAndKeepsEveryElement) {
  OffloadOptions file = test::offload_to_file(), host = test::offload_to_host();
  CpuDevice cpu;
  each_element_once(file, cpu);
  test::SeparateDevice separate;
  each_element_once(file, separate);
  each_element_once(host, separate);
}

TEST(StateStream, OutOfOrderIsRefused) {
  CpuDevice cpu;
  test::SingleRank single;
  OffloadedState state(test::offload_to_file(), precision_of("fp32"), {},
                       {.masters = kElements, .values = kElements, .moments = kElements}, cpu,
                       single.mesh->world());
  const auto stream = StateStream::make(state, cpu, chunks());
  stream->begin(Stream(cpu));
  stream->acquire();
  stream->release();
  EXPECT_THROW(stream->end(), Error) << "three chunks are left";
  EXPECT_THROW(StateStream::make(state, cpu, {{0, kElements}}), Error) << "longer than a chunk";
}

TEST(FileReaderWriter, AFailureIsToldToEveryWait) {
  CpuDevice cpu;
  const OffloadMemory file = OffloadMemory::in_file(cpu, 4096, test::temporary_directory());
  FileReaderWriter thread(file);
  std::array<std::byte, 512> memory{};
  const auto job = [&](bool write, std::size_t offset) {
    return FileReaderWriter::Job{
        .write = write,
        .pieces = 1,
        .piece = {{{.memory = memory.data(), .offset = offset, .bytes = memory.size()}}}};
  };
  thread.wait(thread.post(job(true, 0)));
  const std::uint64_t good = thread.post(job(false, 1024));
  thread.wait(good);
  EXPECT_THROW(thread.wait(thread.post(job(false, 8192))), StorageError);
  EXPECT_THROW(thread.wait(thread.post(job(false, 0))), StorageError);
}

}  // namespace
}  // namespace choir
