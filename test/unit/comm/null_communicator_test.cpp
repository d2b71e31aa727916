#include "src/comm/null_communicator.hpp"

#include <gtest/gtest.h>

#include <array>

#include "choir/comm/mesh/mesh.hpp"
#include "choir/core/error.hpp"

namespace choir {
namespace {

TEST(NullCommunicator, CountsTrafficAndLeavesDataAlone) {
  const auto comm = make_null_communicator("dp", 3, 8);
  EXPECT_EQ(comm->rank(), 3);
  EXPECT_EQ(comm->size(), 8);
  std::array<float, 16> data{};
  data.fill(2.5f);
  comm->all_reduce(data.data(), 10, DType::f32, ReduceOp::sum);      // 40
  comm->reduce_scatter(data.data(), 2, DType::bf16, ReduceOp::sum);  // 32
  comm->start_all_gather(data.data(), 1, DType::f64).wait();         // 64
  comm->broadcast(data.data(), 7, 0);                                // 7
  comm->barrier();                                                   // 0
  EXPECT_EQ(comm->traffic().calls, 5);
  EXPECT_EQ(comm->traffic().bytes, 143.0);
  for (const float value : data) EXPECT_EQ(value, 2.5f);
  comm->reset_traffic();
  EXPECT_EQ(comm->traffic().calls, 0);
}

TEST(NullCommunicator, CountsWhatIsExchanged) {
  const auto comm = make_null_communicator("pp", 1, 3);
  std::array<char, 8> data{};
  const std::array messages{Message{true, data.data(), 5, 2, 0},
                            Message{false, data.data(), 8, 0, 1}};
  ExchangeRequest& request = comm->start_exchange(messages);
  request.wait_received();
  EXPECT_TRUE(request.test());
  request.wait();
  EXPECT_EQ(comm->traffic().calls, 1);
  EXPECT_EQ(comm->traffic().bytes, 13.0);
  const Message to_itself{true, data.data(), 5, 1, 0};
  EXPECT_THROW(comm->start_exchange({&to_itself, 1}), Error);
}

TEST(NullCommunicator, ExchangesWithAFewOthers) {
  const auto comm = make_null_communicator("pp", 0, 8);
  std::array<Message, 5> messages;
  for (int k = 0; k < 5; ++k) messages[static_cast<std::size_t>(k)] = {true, nullptr, 0, k + 1, 0};
  EXPECT_THROW(comm->start_exchange(messages), Error);
  comm->start_exchange({messages.data(), 4}).wait();
}

TEST(NullCommunicator, ReservesMoreThanTheMachineHas) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer leaves no so large range of addresses";
#endif
  const auto comm = make_null_communicator("dp", 0, 4);
  const auto buffer = comm->allocate(std::size_t{1} << 42);
  EXPECT_EQ(buffer->bytes(), std::size_t{1} << 42);
  EXPECT_EQ(static_cast<const char*>(buffer->data())[std::size_t{1} << 41], 0);
}

TEST(NullCommunicator, RefusesARankOutsideTheGroup) {
  EXPECT_THROW(make_null_communicator("dp", 4, 4), Error);
}

TEST(PlannedMesh, HasTheSizesOfTheLayout) {
  const Layout layout(4, 1, 6, 2);
  const auto mesh = Mesh::planned(layout, 29, 4);
  EXPECT_EQ(mesh->coordinates(), (Coordinates{{1, 0, 1, 1}}));  // 1 + 4*(0 + 1*(1 + 6*1))
  EXPECT_EQ(mesh->world().size(), 48);
  EXPECT_EQ(mesh->world().rank(), 29);
  EXPECT_EQ(mesh->along(Axis::tensor).size(), 4);
  EXPECT_EQ(mesh->along(Axis::data).size(), 6);
  EXPECT_EQ(mesh->along(Axis::data).rank(), 1);
  EXPECT_EQ(mesh->along(Axis::pipeline).size(), 2);
  EXPECT_EQ(mesh->nodes(), 12);
  EXPECT_EQ(mesh->node_index(), 7);
  EXPECT_EQ(mesh->node().size(), 4);
  EXPECT_EQ(mesh->node().rank(), 1);
  EXPECT_STREQ(mesh->along(Axis::data).transport(), "null");
}

}  // namespace
}  // namespace choir
