// Tests of checkpoint.async with little memory: the decision of every rank, and its message.
#include <gtest/gtest.h>

#include "choir/core/error.hpp"
#include "src/train/loop/save_schedule.hpp"
#include "test/support/mpi_test.hpp"

namespace choir {
namespace {

class AsyncChoice : public ::testing::Test {
 protected:
  AsyncChoice()
      : mesh_(Mesh::over_world(Layout(1, 1, test::world_size(), 1), Transport::automatic)) {
    deck_.checkpoint.interval = 5;
    deck_.checkpoint.async = AsyncSaves::automatic;
  }
  bool last() const { return mesh_->rank() == test::world_size() - 1; }
  bool choose(std::size_t snapshot_bytes) {
    StepPlan plan;
    plan.snapshot_bytes = snapshot_bytes;
    return choose_async(deck_, plan, *mesh_, *device_, why_);
  }

  static constexpr std::size_t kTooMuch = std::size_t{1} << 60;
  std::unique_ptr<Mesh> mesh_;
  Deck deck_;
  std::unique_ptr<Device> device_ = make_device(DeviceKind::cpu);
  std::string why_;
};

TEST_F(AsyncChoice, WithRoomSavesAreAsynchronous) {
  EXPECT_ALL_RANKS(choose(1000));
  EXPECT_EQ(why_, "");
}

TEST_F(AsyncChoice, OneRankWithoutRoomMakesAllWait) {
  EXPECT_ALL_RANKS(!choose(last() ? kTooMuch : 1000));
  EXPECT_NE(why_.find("checkpoint.async: training waits for saves, because "), std::string::npos)
      << why_;
  const char* words =
      last() ? "each for a copy of the state in addition to the memory of training, but it has "
             : "1 other rank has to";
  EXPECT_NE(why_.find(words), std::string::npos) << why_;
}

TEST_F(AsyncChoice, WhereItWasAskedForThatIsAnError) {
  deck_.checkpoint.async = AsyncSaves::always;
  std::string words;
  try {
    choose(last() ? kTooMuch : 1000);
  } catch (const DeckError& error) {
    words = std::string(error.what()) + error.hint();
  }
  EXPECT_ALL_RANKS(words.find("each for a copy of the state") != std::string::npos) << words;
  EXPECT_ALL_RANKS(words.find("set checkpoint.async to \"auto\" or false") != std::string::npos)
      << words;
}

TEST_F(AsyncChoice, WithoutSavesOnTheWayNothingIsSaid) {
  deck_.checkpoint.interval = 0;
  EXPECT_ALL_RANKS(!choose(kTooMuch));
  EXPECT_EQ(why_, "");
}

}  // namespace
}  // namespace choir
