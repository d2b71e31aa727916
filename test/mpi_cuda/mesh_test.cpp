// Tests of the mesh with a device: the transport that it uses, and that the control plane stays on
// the host.
#include <dlfcn.h>

#include <cstdlib>

#include "choir/comm/mesh/mesh.hpp"
#include "choir/core/error.hpp"
#include "kernels/gemm/gemm.hpp"
#include "src/comm/mesh/device_choice.hpp"
#include "src/device/collective_share.hpp"
#include "src/models/gpt/gpt.hpp"
#include "src/parallel/gradients/gradient_sums.hpp"
#include "test/mpi_cuda/device_kinds.hpp"
#include "test/support/mirror.hpp"
#include "test/unit/train/engine_case.hpp"

namespace choir::test {
namespace {

using Way = DeviceTransport::Way;

class DeviceMesh : public testing::Test {
 protected:
  void SetUp() override {
    const auto cards = cuda::availability().cards;
    if (cards.empty()) GTEST_SKIP() << "there is no GPU";
    emulated_ = !nccl_library().empty();
    if (!emulated_) GTEST_SKIP() << "only under host execution";
    device_ = make_device(DeviceKind::cuda);
    mesh_ = Mesh::over_world(Layout(1, 1, world_size(), 1), Transport::automatic);
  }
  std::string transport() { return mesh_->along(Axis::data).transport(); }

  bool emulated_ = false;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Mesh> mesh_;
};

TEST_F(DeviceMesh, TakesNcclWhereItCan) {
  mesh_->attach(*device_, {.nccl_library = nccl_library()});
  EXPECT_EQ(transport(), world_size() > 1 ? "nccl" : "staged");
  EXPECT_EQ(mesh_->transport_note(), "");
  EXPECT_STRNE(mesh_->host_along(Axis::data).transport(), "nccl");
  EXPECT_STREQ(mesh_->world().transport(), "mpi");
  OnDevice<float> memory(*device_, mesh_->along(Axis::data), 3);
  memory.write({1, 2, 3});
  mesh_->along(Axis::data).all_reduce(memory.data(), 3, DType::f32, ReduceOp::sum);
  const auto n = static_cast<float>(world_size());
  EXPECT_ALL_RANKS((memory.read() == std::vector<float>{n, 2 * n, 3 * n}));
}

// Share of the GPU that a kernel of each communicator may take, in case all of them wait for their
// peers at once.
TEST_F(DeviceMesh, KernelsOfSeveralGroupsFitOnTheCardTogether) {
  if (world_size() != 2) GTEST_SKIP() << "needs 2 ranks";
  const int half = world_size() / 2;
  // Two groups each: context and the ranks with the same parameters; tensor and pipeline.
  for (const Layout& layout : {Layout(1, world_size(), 1, 1), Layout(2, 1, 1, half)}) {
    const auto mesh = Mesh::over_world(layout, Transport::automatic);
    mesh->attach(*device_, {.way = Way::nccl, .nccl_library = nccl_library()});
    void* library = dlopen(nccl_library().c_str(), RTLD_NOW);
    const auto blocks = reinterpret_cast<int (*)()>(dlsym(library, "nccl_fake_blocks"));
    const bool several = layout.size(Axis::context) > 1 || half > 1;
    const int card = cuda::card_of(*device_)->multiprocessors;
    EXPECT_ALL_RANKS(several ? blocks() >= 2 && blocks() <= card : blocks() == 32) << blocks();
    dlclose(library);
  }
}

// NCCL rounds the thread blocks of send and receive up to a power of two: 19 would become 32.
TEST_F(DeviceMesh, MessagesOfSeveralGroupsFitOnTheCardToo) {
  if (world_size() != 2) GTEST_SKIP() << "needs 2 ranks";
  const auto blocks = emulated_function<int (*)()>("nccl_fake_blocks");
  setenv("HOST_CUDA_MULTIPROCESSORS", "132", 1);
  const auto device = make_device(DeviceKind::cuda);
  unsetenv("HOST_CUDA_MULTIPROCESSORS");
  // Five communicators: two axes, and three of replicas.
  const auto mesh = Mesh::over_world(Layout(2, 1, 1, 1), Transport::automatic);
  mesh->attach(*device, {.way = Way::nccl, .replica_groups = 4, .nccl_library = nccl_library()});
  Communicator& tensor = mesh->along(Axis::tensor);
  EXPECT_ALL_RANKS(blocks() == 16) << blocks();
  OnDevice<float> memory(*device, tensor, 8);
  memory.write(std::vector<float>(8, 1.0f));
  const int peer = 1 - tensor.rank();
  const std::vector<Message> messages{
      {.send = true, .data = memory.data(), .bytes = 16, .peer = peer},
      {.send = false, .data = memory.data() + 4, .bytes = 16, .peer = peer}};
  tensor.start_exchange(messages).wait();
  EXPECT_ALL_RANKS(memory.read()[4] == 1.0f);
  EXPECT_ALL_RANKS(blocks() == 16) << "rounded up to " << blocks();
}

// Kernels of several communicators start in the order of the calls.
TEST_F(DeviceMesh, SeveralGroupsAskNcclToOrderTheirKernels) {
  const auto value = [] {
    const char* text = std::getenv("NCCL_LAUNCH_ORDER_IMPLICIT");
    return std::string(text != nullptr ? text : "");
  };
  const auto make = [&](int communicators) {
    make_nccl_communicator(mesh_->host_along(Axis::data), *device_, "group",
                           {.library = nccl_library(), .communicators = communicators});
  };
  unsetenv("NCCL_LAUNCH_ORDER_IMPLICIT");
  make(1);
  EXPECT_EQ(value(), "");
  make(2);
  EXPECT_EQ(value(), "1");
  setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "0", 1);
  make(2);
  EXPECT_EQ(value(), "0") << "the user decides";
  unsetenv("NCCL_LAUNCH_ORDER_IMPLICIT");
}

// A large buffer is memory of NCCL and a window; a small one is neither, because NCCL would round
// it up.
TEST_F(DeviceMesh, LargeBuffersAreWindows) {
  if (world_size() == 1) GTEST_SKIP() << "needs peers";
  const auto windows = emulated_function<int (*)()>("nccl_fake_windows");
  setenv("HOST_CUDA_CAPABILITY", "80", 1);  // pages of 2 MiB
  const auto device = make_device(DeviceKind::cuda);
  constexpr std::size_t kLarge = std::size_t{17} << 20, kSmall = 1 << 16;
  mesh_->attach(*device, {.way = Way::nccl, .nccl_library = nccl_library()});
  Communicator& data = mesh_->along(Axis::data);
  {
    const std::size_t before = cuda::free_memory(*device);
    const auto small = data.allocate(kSmall);
    EXPECT_ALL_RANKS(windows() == 0) << windows();
    EXPECT_LE(before - cuda::free_memory(*device), kSmall);
    OnDevice<float> large(*device, data, kLarge / sizeof(float));
    EXPECT_ALL_RANKS(windows() == 1) << windows();
    data.all_reduce(large.data(), 8, DType::f32, ReduceOp::sum);
    const auto unequal = data.allocate(kLarge << (data.rank() == 0 ? 1 : 0));
    EXPECT_ALL_RANKS(windows() == 1) << "ranks with different sizes: " << windows();
  }
  EXPECT_ALL_RANKS(windows() == 0) << windows();
  mesh_.reset();  // before its device
  unsetenv("HOST_CUDA_CAPABILITY");
}

// Activations are in a window of NCCL where their axes have several ranks, if NCCL need not round
// much; older versions register memory without windows.
TEST_F(DeviceMesh, ActivationsAreRegisteredWhereThatIsPossible) {
  if (world_size() == 1) GTEST_SKIP() << "needs peers";
  const auto windows = emulated_function<int (*)()>("nccl_fake_windows");
  const auto in_windows = emulated_function<int (*)()>("nccl_fake_calls_in_windows");
  setenv("HOST_CUDA_CAPABILITY", "80", 1);  // pages of 2 MiB
  const auto device = make_device(DeviceKind::cuda);
  constexpr std::size_t kLarge = std::size_t{17} << 20, kSmall = 1 << 16;
  const Layout along_tensor(world_size(), 1, 1, 1), along_data(1, 1, world_size(), 1);
  const auto attached = [&](const Layout& layout, bool registers) {
    auto mesh = Mesh::over_world(layout, Transport::automatic);
    mesh->attach(*device,
                 {.way = Way::nccl, .register_memory = registers, .nccl_library = nccl_library()});
    return mesh;
  };
  for (const char* const version : {"22899", "22605"}) {
    setenv("NCCL_FAKE_VERSION", version, 1);
    const auto mesh = attached(along_tensor, true);
    {
      const std::size_t before = cuda::free_memory(*device);
      cuda::provide_next(*device, mesh->block_for_collectives(kLarge));
      const Buffer activations(*device, kLarge);
      EXPECT_GE(before - cuda::free_memory(*device), kLarge);
      EXPECT_ALL_RANKS(windows() == 1) << windows();
      EXPECT_EQ(mesh->registration_note(),
                "activations are registered with NCCL on 1 communicator");
      const int calls = in_windows();
      auto* const part = static_cast<float*>(activations.data()) + 1024;
      mesh->along(Axis::tensor).all_reduce(part, 8, DType::f32, ReduceOp::sum);
      device->synchronize(device->main_stream());
      EXPECT_ALL_RANKS(in_windows() == calls + 1);
      EXPECT_EQ(mesh->block_for_collectives(kSmall), nullptr);
      const bool first = mesh->rank() == 0;
      EXPECT_EQ(mesh->block_for_collectives(first ? kLarge : 2 * kLarge), nullptr);
      EXPECT_NE(mesh->registration_note().find("are not registered"), std::string::npos)
          << "ranks with different sizes: " << mesh->registration_note();
      EXPECT_ALL_RANKS(windows() == 1) << windows();
    }
    EXPECT_ALL_RANKS(windows() == 0) << windows();
  }
  unsetenv("NCCL_FAKE_VERSION");
  const auto refused = attached(along_tensor, false);
  EXPECT_EQ(refused->block_for_collectives(kLarge), nullptr);
  EXPECT_NE(refused->registration_note().find("parallel.register_memory"), std::string::npos);
  EXPECT_EQ(refused->along(Axis::tensor).allocate(kLarge)->bytes(), kLarge);
  EXPECT_ALL_RANKS(windows() == 0) << windows();
  const auto of_data = attached(along_data, true);
  EXPECT_EQ(of_data->block_for_collectives(kLarge), nullptr) << "data ranks share no activations";
  EXPECT_EQ(of_data->registration_note(), "");
  unsetenv("HOST_CUDA_CAPABILITY");
}

// A product that is queued while a collective is in flight leaves multiprocessors to it, if the
// deck asks for that.
TEST_F(DeviceMesh, ProductsLeaveRoomForCollectivesInFlight) {
  if (world_size() == 1) GTEST_SKIP() << "needs peers";
  const auto target = emulated_function<int (*)()>("host_cublaslt_last_target");
  const auto crowding = emulated_function<int (*)()>("host_cublaslt_crowding");
  Mirror mirror(*device_);
  const HostTensor a = HostTensor::normal(DType::bf16, {64, 64}, 1);
  HostTensor c(DType::f32, {64, 64});
  const TensorView in = mirror.in(a), out = mirror.io(c);
  const Stream stream(*device_);
  const auto of_product = [&] {
    ops::gemm(stream, in, in, out);
    return target();
  };
  const int all = cuda::card_of(*device_)->multiprocessors;
  for (const int kept : {0, 1}) {
    const auto mesh = Mesh::over_world(Layout(1, 1, world_size(), 1), Transport::automatic);
    mesh->attach(*device_,
                 {.way = Way::nccl, .free_multiprocessors = kept, .nccl_library = nccl_library()});
    Communicator& data = mesh->along(Axis::data);
    OnDevice<float> memory(*device_, data, 64);
    memory.write(std::vector<float>(64, 1.0f));
    EXPECT_EQ(of_product(), 0);
    const int before = crowding();
    CommRequest& request = data.start_all_reduce(memory.data(), 64, DType::f32, ReduceOp::sum);
    EXPECT_EQ(of_product(), kept == 0 ? 0 : all - kept);
    request.wait();
    EXPECT_EQ(of_product(), 0);
    data.all_reduce(memory.data(), 64, DType::f32, ReduceOp::sum);
    EXPECT_EQ(of_product(), 0);
    stream.synchronize();
    EXPECT_ALL_RANKS(kept == 0 || crowding() == before) << crowding() - before;
    // In the order of the calls the product runs while the all-reduce may begin.
    const bool in_order = std::getenv("HOST_CUDA_SEED") == nullptr;
    EXPECT_ALL_RANKS(!in_order || kept > 0 || crowding() > before) << "the stand-in saw nothing";
  }
  mirror.fetch();
}

TEST_F(DeviceMesh, StagesWhereRanksShareACardAndSaysWhy) {
  mesh_->attach(*device_, {.shared_cards = true, .nccl_library = nccl_library()});
  EXPECT_EQ(transport(), "staged");
  EXPECT_EQ(mesh_->transport_note().find("share a GPU") != std::string::npos, world_size() > 1);
  const auto speeds = measure_axes(*mesh_, *device_, 1 << 16);
  ASSERT_EQ(speeds.size(), world_size() > 1 ? 1u : 0u);
  if (world_size() == 1) return;
  EXPECT_EQ(speeds[0].transport, "staged");
  EXPECT_EQ(speeds[0].ranks, world_size());
  EXPECT_GT(speeds[0].bus_gb_per_s, 0);
}

TEST_F(DeviceMesh, StagesWhereThereIsNoNccl) {
  mesh_->attach(*device_, {.nccl_library = "/nowhere/libnccl.so"});
  EXPECT_EQ(transport(), "staged");
  EXPECT_EQ(mesh_->transport_note().find("/nowhere") != std::string::npos, world_size() > 1);
}

TEST_F(DeviceMesh, RefusesNcclThatIsAskedForAndNotThere) {
  if (world_size() == 1) GTEST_SKIP() << "needs 2 or more ranks";
  std::string text;
  try {
    mesh_->attach(*device_, {.way = Way::nccl, .shared_cards = true});
  } catch (const DeckError& error) {
    text = error.what();
  }
  EXPECT_ALL_RANKS(text.find("ranks share a GPU") != std::string::npos) << text;
}

// Every process of the emulation sees the same card.
TEST_F(DeviceMesh, TwoRanksOnOneCardAreRefusedUnlessAllowed) {
  std::string text;
  try {
    choose_device(*mesh_, {.device = RequestedDevice::cuda});
  } catch (const DeckError& error) {
    text = std::string(error.what()) + error.hint();
  }
  const bool named = text.find("GPU-00000000-0000-0000-0000-000000000001") != std::string::npos &&
                     text.find("parallel.share_device=true") != std::string::npos;
  EXPECT_ALL_RANKS(named == (world_size() > 1)) << text;
  const DeviceChoice choice = choose_device(*mesh_, {.share = true});
  EXPECT_EQ(choice.kind, DeviceKind::cuda);
  EXPECT_EQ(choice.shared_cards, world_size() > 1);
  EXPECT_EQ(choose_device(*mesh_, {.fp64 = true}).kind, DeviceKind::cpu);
  EXPECT_EQ(choose_device(*mesh_, {.device = RequestedDevice::cpu}).kind, DeviceKind::cpu);
}

// The gradients of a model through the reducer: buckets in flight while later ones are written.
TEST_F(DeviceMesh, ReducerSumsBucketsOnEveryTransport) {
  for (const Way way : {Way::staged, Way::automatic}) {
    if (way == Way::automatic && world_size() == 1) continue;
    const auto mesh = Mesh::over_world(Layout(1, 1, world_size(), 1), Transport::automatic);
    mesh->attach(*device_, {.way = way, .nccl_library = nccl_library()});
    Communicator& data = mesh->along(Axis::data);
    const Stream stream(*device_);
    ParameterSet set;
    const Gpt model(tiny_gpt(), set);
    ParameterStorage storage(set, precision_of("fp32"), *device_, data, true);
    ParameterGatherer gatherer(storage, *device_);
    GradientReducer reducer(storage, gatherer, *device_, 1, false);
    std::vector<HostBuffer> fresh;
    reducer.begin_micro_batch(stream, 0);
    for (int b = static_cast<int>(set.buckets().size()) - 1; b >= 0; --b) {
      const Bucket& bucket = set.buckets()[static_cast<std::size_t>(b)];
      const TensorView gradients = storage.gradients(bucket);
      fresh.emplace_back(*device_, gradients.bytes());
      auto* values = static_cast<float*>(fresh.back().data());
      for (std::int64_t i = 0; i < gradients.count(); ++i)
        values[i] = static_cast<float>((i * 7 + world_rank() * 13 + b) % 29);
      stream.copy_from_host(gradients.data, values, gradients.bytes());
      reducer.gradients_ready(b);
    }
    reducer.finish();
    bool ok = true;
    for (std::size_t b = 0; b < set.buckets().size(); ++b) {
      const TensorView gradients = storage.gradients(set.buckets()[b]);
      std::vector<float> got(static_cast<std::size_t>(gradients.count()));
      device_->copy_to_host(got.data(), gradients.data, gradients.bytes());
      for (std::size_t i = 0; i < got.size(); ++i) {
        std::size_t sum = 0;
        for (int p = 0; p < world_size(); ++p)
          sum += (i * 7 + static_cast<std::size_t>(p) * 13 + b) % 29;
        ok &= got[i] == static_cast<float>(sum);
      }
    }
    EXPECT_ALL_RANKS(ok) << data.transport();
  }
}

}  // namespace
}  // namespace choir::test
