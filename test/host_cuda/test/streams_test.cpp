// Tests of the CUDA runtime on the CPU: operations without an order run in the wrong order, sooner
// or later.
#include <gtest/gtest.h>

#include <numeric>
#include <thread>

#include "choir/core/error.hpp"
#include "kernels/cuda/launch.cuh"
#include "src/device/cuda.hpp"
#include "test/host_cuda/runtime.hpp"

namespace choir::cuda {
namespace {

class HostStreams : public ::testing::Test {
 protected:
  void TearDown() override { seed(0); }
  void seed(std::uint64_t value) { host_cuda::runtime().seed = host_cuda::runtime().state = value; }

  std::unique_ptr<Device> device_ = make_device(DeviceKind::cuda);
};

void fill(int value, int* to) {
  follow_earlier();
  to[threadIdx.x] = value;
}
void add_to(const int* from, int* to) {
  follow_earlier();
  to[threadIdx.x] += from[threadIdx.x];
}

/// One stream writes 5, another adds it to zero; returns the number of 40 seeds for which the sum
/// is 5.
int times_right(Device& device, bool with_event, const std::function<void(std::uint64_t)>& seed) {
  int right = 0;
  for (std::uint64_t s = 1; s <= 40; ++s) {
    seed(s);
    const Buffer x(device, sizeof(int)), y(device, sizeof(int));
    const Stream main(device);
    const SideStream side(device);
    Event written(device);
    device.zero(x.data(), x.bytes());
    device.zero(y.data(), y.bytes());
    launch(side.stream(), "fill", fill, {1, 1}, 5, static_cast<int*>(x.data()));
    written.record(side.stream());
    if (with_event) main.wait(written);
    launch(main, "add_to", add_to, {1, 1}, static_cast<const int*>(x.data()),
           static_cast<int*>(y.data()));
    int sum = 0;
    device.copy_to_host(&sum, y.data(), sizeof sum);
    right += sum == 5;
    side.stream().synchronize();
  }
  return right;
}

TEST_F(HostStreams, AnEventOrdersTwoStreamsAndAMissingOneDoesNot) {
  const auto with = [this](std::uint64_t s) { seed(s); };
  EXPECT_EQ(times_right(*device_, true, with), 40);
  const int by_luck = times_right(*device_, false, with);
  EXPECT_GT(by_luck, 0);
  EXPECT_LT(by_luck, 40);
}

TEST_F(HostStreams, PinnedMemoryReusedTooEarlyIsSeen) {
  const Buffer x(*device_, sizeof(int));
  const HostBuffer host(*device_, sizeof(int));
  const Stream stream(*device_);
  *static_cast<int*>(host.data()) = 1;
  stream.copy_from_host(x.data(), host.data(), sizeof(int));
  *static_cast<int*>(host.data()) = 2;
  int seen = 0;
  device_->copy_to_host(&seen, x.data(), sizeof seen);
  EXPECT_EQ(seen, 2);
  // Ordinary memory is read before the call returns.
  int ordinary = 3;
  stream.copy_from_host(x.data(), &ordinary, sizeof(int));
  ordinary = 4;
  device_->copy_to_host(&seen, x.data(), sizeof seen);
  EXPECT_EQ(seen, 3);
}

TEST_F(HostStreams, EventsMeasureAndSayWhenTheyAreReached) {
  const Stream stream(*device_);
  Event begin(*device_), end(*device_);
  const Buffer x(*device_, sizeof(int));
  begin.record_time(stream);
  launch(stream, "fill", fill, {1, 1}, 1, static_cast<int*>(x.data()));
  end.record_time(stream);
  EXPECT_FALSE(end.complete());
  end.synchronize();
  EXPECT_TRUE(begin.complete());
  EXPECT_GE(end.seconds_since(begin), 0.0);
}

// Taking the time costs the device a write, so events that only order work do not take it.
TEST_F(HostStreams, EventsTakeTheTimeWhereItIsRecorded) {
  const int before = host_cuda::runtime().timed_records;
  const Stream stream(*device_);
  Event begin(*device_), end(*device_);
  begin.record(stream);
  end.record(stream);
  end.synchronize();
  EXPECT_EQ(host_cuda::runtime().timed_records, before);
  EXPECT_THROW(end.seconds_since(begin), Error);
  begin.record_time(stream);
  end.record_time(stream);
  stream.wait(end);
  end.synchronize();
  EXPECT_EQ(host_cuda::runtime().timed_records, before + 2);
  EXPECT_GE(end.seconds_since(begin), 0.0);
}

TEST_F(HostStreams, GraphsReplayWhatWasCapturedOverSeveralStreams) {
  const Buffer x(*device_, sizeof(int)), y(*device_, sizeof(int));
  device_->zero(y.data(), y.bytes());
  const Stream main(*device_);
  const SideStream side(*device_);
  Event fork(*device_), join(*device_);
  Event before(*device_), after(*device_);
  device_->begin_capture(main.native());
  before.record_time(main);
  launch(main, "fill", fill, {1, 1}, 7, static_cast<int*>(x.data()));
  fork.record(main);
  side.stream().wait(fork);
  launch(side.stream(), "add_to", add_to, {1, 1}, static_cast<const int*>(x.data()),
         static_cast<int*>(y.data()));
  join.record(side.stream());
  main.wait(join);
  after.record_time(main);
  const NativeGraph graph = device_->end_capture(main.native());
  for (int i = 0; i < 3; ++i) device_->launch(graph, main.native());
  int sum = 0;
  device_->copy_to_host(&sum, y.data(), sizeof sum);
  EXPECT_EQ(sum, 21);
  EXPECT_GE(after.seconds_since(before), 0.0);
  device_->destroy(graph);
}

void note(int who, int* list) {
  follow_earlier();
  int k = 0;
  while (list[k] != 0) ++k;
  list[k] = who;
}

// Work of an urgent stream, such as a collective, runs before compute that is ready with it, also
// if the compute was recorded first.
TEST_F(HostStreams, NodesOfAGraphKeepThePrioritiesOfTheirStreams) {
  seed(0);  // a seed of the environment ignores priorities, which are hints
  const Buffer order(*device_, 4 * sizeof(int));
  device_->zero(order.data(), order.bytes());
  auto* list = static_cast<int*>(order.data());
  const Stream main(*device_);
  const SideStream usual(*device_), urgent(*device_, true);
  Event fork(*device_), of_usual(*device_), of_urgent(*device_);
  device_->begin_capture(main.native());
  fork.record(main);
  launch(main, "note", note, {1, 1}, 1, list);
  usual.stream().wait(fork);
  launch(usual.stream(), "note", note, {1, 1}, 2, list);
  of_usual.record(usual.stream());
  urgent.stream().wait(fork);
  launch(urgent.stream(), "note", note, {1, 1}, 3, list);
  of_urgent.record(urgent.stream());
  main.wait(of_usual);
  main.wait(of_urgent);
  const NativeGraph graph = device_->end_capture(main.native());
  device_->launch(graph, main.native());
  std::vector<int> seen(3);
  device_->copy_to_host(seen.data(), list, 3 * sizeof(int));
  EXPECT_EQ(seen, (std::vector{3, 1, 2}));
  device_->destroy(graph);
}

void twice(const int* from, int* to) {
  follow_earlier();
  to[0] = 2 * from[0];
}
void twice_too_early(const int* from, int* to) {
  const int x = from[0];
  follow_earlier();
  to[0] = 2 * x;
}
void careless(int* to) {
  to[0] = 1;
}

/// Fills x with 5 and records twice the kernel that reads it; returns the result of a replay.
/// `between` is recorded between them.
int replayed(
    Device& device, bool dependent, void (*reader)(const int*, int*),
    const std::function<void(const Stream&)>& between = [](const Stream&) {}) {
  const Stream main(device);
  const Buffer x(device, sizeof(int)), y(device, sizeof(int));
  auto *from = static_cast<int*>(x.data()), *to = static_cast<int*>(y.data());
  launch(main, "fill", fill, {1, 1}, 1, from);  // shows that it lets the next kernel begin
  device.zero(from, sizeof(int));
  cuda::set_dependent_launch(device, dependent);
  device.begin_capture(main.native());
  launch(main, "fill", fill, {1, 1}, 5, from);
  between(main);
  launch(main, "twice", reader, {1, 1}, static_cast<const int*>(from), to);
  const NativeGraph graph = device.end_capture(main.native());
  device.launch(graph, main.native());
  int result = 0;
  device.copy_to_host(&result, to, sizeof result);
  device.destroy(graph);
  return result;
}

// With dependent launch a kernel of a graph begins before the one ahead of it has ended: what it
// reads before it waits is old. It starts later if it also comes after another stream.
TEST_F(HostStreams, AKernelThatReadsBeforeItWaitsSeesOldData) {
  for (std::uint64_t s = 0; s <= 5; ++s) {
    seed(s);
    EXPECT_EQ(replayed(*device_, true, twice), 10);
    EXPECT_EQ(replayed(*device_, false, twice_too_early), 10);
    EXPECT_EQ(replayed(*device_, true, twice_too_early), 0);
    const SideStream side(*device_);
    Event fork(*device_), join(*device_);
    const Buffer z(*device_, sizeof(int));
    EXPECT_EQ(
        replayed(*device_, true, twice_too_early,
                 [&](const Stream& main) {
                   fork.record(main);
                   side.stream().wait(fork);
                   launch(side.stream(), "fill", fill, {1, 1}, 7, static_cast<int*>(z.data()));
                   join.record(side.stream());
                   main.wait(join);
                 }),
        10);
  }
}

TEST_F(HostStreams, AKernelThatDoesNotWaitIsADefect) {
  const Buffer x(*device_, sizeof(int));
  const Stream main(*device_);
  EXPECT_EXIT(
      {
        launch(main, "careless", careless, {1, 1}, static_cast<int*>(x.data()));
        main.synchronize();
      },
      ::testing::ExitedWithCode(70), "careless: a thread ends without waiting");
}

cudaStream_t native(const Stream& stream) {
  return static_cast<cudaStream_t>(stream.native());
}

/// Waits until `other` is 1, like work that waits for another process.
void queue_waiter(const Stream& stream, const int* other, int* turns) {
  host_cuda::queue_for_peers(native(stream), [=] {
    return [=] {
      ++*turns;
      return *other == 1;
    };
  });
}

TEST_F(HostStreams, WorkThatWaitsForOthersHoldsUpItsOwnStreamOnly) {
  for (const bool recorded : {false, true})
    for (std::uint64_t s = 0; s <= 20; ++s) {
      seed(s);
      const Buffer flag(*device_, sizeof(int)), sum(*device_, sizeof(int));
      device_->zero(flag.data(), flag.bytes());
      device_->zero(sum.data(), sum.bytes());
      const Stream main(*device_);
      const SideStream side(*device_);
      Event fork(*device_), join(*device_);
      auto* value = static_cast<int*>(flag.data());
      int turns = 0;
      if (recorded) device_->begin_capture(main.native());
      fork.record(main);
      side.stream().wait(fork);
      queue_waiter(side.stream(), value, &turns);
      launch(side.stream(), "add_to", add_to, {1, 1}, static_cast<const int*>(value),
             static_cast<int*>(sum.data()));
      join.record(side.stream());
      launch(main, "fill", fill, {1, 1}, 1, value);  // the event for which the other stream waits
      main.wait(join);
      if (recorded) {
        const NativeGraph graph = device_->end_capture(main.native());
        device_->launch(graph, main.native());
        main.synchronize();
        device_->destroy(graph);
      }
      int seen = 0;
      device_->copy_to_host(&seen, sum.data(), sizeof seen);
      EXPECT_EQ(seen, 1) << "seed " << s;
      EXPECT_GE(turns, 1);
    }
}

// Only events order the branches of a graph, as with streams.
TEST_F(HostStreams, AMissingEventInAGraphIsSeen) {
  int right = 0;
  for (std::uint64_t s = 1; s <= 40; ++s) {
    seed(s);
    const Buffer x(*device_, sizeof(int)), y(*device_, sizeof(int));
    device_->zero(x.data(), x.bytes());
    device_->zero(y.data(), y.bytes());
    const Stream main(*device_);
    const SideStream side(*device_);
    Event fork(*device_), join(*device_);
    device_->begin_capture(main.native());
    fork.record(main);
    side.stream().wait(fork);
    launch(side.stream(), "fill", fill, {1, 1}, 5, static_cast<int*>(x.data()));
    join.record(side.stream());
    launch(main, "add_to", add_to, {1, 1}, static_cast<const int*>(x.data()),
           static_cast<int*>(y.data()));
    main.wait(join);  // too late
    const NativeGraph graph = device_->end_capture(main.native());
    device_->launch(graph, main.native());
    int sum = 0;
    device_->copy_to_host(&sum, y.data(), sizeof sum);
    right += sum == 5;
    device_->destroy(graph);
  }
  EXPECT_GT(right, 0);
  EXPECT_LT(right, 40);
}

TEST_F(HostStreams, ACaptureThatIsNotJoinedIsRefused) {
  const Stream main(*device_);
  const SideStream side(*device_);
  Event fork(*device_);
  const Buffer x(*device_, sizeof(int));
  CHOIR_CUDA(cudaStreamBeginCapture(native(main), cudaStreamCaptureModeGlobal));
  fork.record(main);
  side.stream().wait(fork);
  launch(side.stream(), "fill", fill, {1, 1}, 5, static_cast<int*>(x.data()));
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(native(main), &graph), static_cast<cudaError_t>(904));
  EXPECT_EQ(graph, nullptr);
  cudaGetLastError();
}

TEST_F(HostStreams, ACaptureDoesNotWaitForWhatIsOutsideIt) {
  const Stream main(*device_);
  const SideStream side(*device_);
  Event outside(*device_);
  outside.record(side.stream());
  CHOIR_CUDA(cudaStreamBeginCapture(native(main), cudaStreamCaptureModeGlobal));
  EXPECT_THROW(main.wait(outside), Error);
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(native(main), &graph), cudaErrorStreamCaptureInvalidated);
  cudaGetLastError();
}

TEST_F(HostStreams, WaitingInsideACaptureSpoilsIt) {
  const Stream main(*device_);
  CHOIR_CUDA(cudaStreamBeginCapture(native(main), cudaStreamCaptureModeGlobal));
  EXPECT_THROW(main.synchronize(), Error);
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(native(main), &graph), cudaErrorStreamCaptureInvalidated);
  cudaGetLastError();
}

// The thread that writes a checkpoint waits in this way while the next step is recorded.
TEST_F(HostStreams, AnotherThreadMayWaitWhileThisOneCaptures) {
  const Stream main(*device_);
  const SideStream side(*device_);
  Event copied(*device_);
  copied.record(side.stream());
  device_->begin_capture(main.native());
  std::thread([&] { EXPECT_NO_THROW(copied.synchronize()); }).join();
  cudaGraph_t graph = nullptr;
  CHOIR_CUDA(cudaStreamEndCapture(native(main), &graph));
  CHOIR_CUDA(cudaGraphDestroy(graph));
}

TEST_F(HostStreams, NoThreadMayWaitForWhatIsBeingCaptured) {
  const Stream main(*device_);
  Event captured(*device_);
  device_->begin_capture(main.native());
  captured.record(main);
  std::thread([&] { EXPECT_THROW(captured.synchronize(), Error); }).join();
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(native(main), &graph), cudaErrorStreamCaptureInvalidated);
  cudaGetLastError();
}

TEST_F(HostStreams, RunningOutOfMemoryNamesTheSizes) {
  try {
    const Buffer huge(*device_, std::size_t{1} << 40);
    FAIL() << "1 TiB was given";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("1.0 TiB requested"), std::string::npos)
        << error.what();
  }
}

#if !defined(HOST_CUDA_MALLOC)
TEST(HostStreamsDeathTest, TheHostCannotTouchDeviceMemory) {
  const auto device = make_device(DeviceKind::cuda);
  const Buffer x(*device, sizeof(int));
  EXPECT_DEATH(*static_cast<volatile int*>(x.data()) = 1, "");
}
#endif

}  // namespace
}  // namespace choir::cuda
