// Tests of pipeline schedules as text.
#include "src/parallel/pipeline/schedule_simulation.hpp"

#include <gtest/gtest.h>

#include <sstream>

namespace choir {
namespace {

std::string drawn(ScheduleKind kind, const PipelineShape& shape, const ChunkCost& cost = {},
                  int width = 160) {
  const Schedule schedule = make_schedule(kind, shape, Exchange::overlapped);
  return draw(schedule, simulate(schedule, uniform_costs(shape, cost)), width);
}

TEST(ScheduleDrawing, OneForwardOneBackward) {
  EXPECT_EQ(drawn(ScheduleKind::one_f_one_b, {4, 4}),
            "0 F0 F1 F2 F3 ..................B0----...B1----...B2----...B3----\n"
            "1 ...F0 F1 F2 ............B0----F3 B1----...B2----...B3----......\n"
            "2 ......F0 F1 ......B0----F2 B1----F3 B2----...B3----............\n"
            "3 .........F0 B0----F1 B1----F2 B2----F3 B3----..................\n"
            "makespan 21, bubble 42.9 %, live activations 4 3 2 1\n");
}

TEST(ScheduleDrawing, WeightGradientsFillTheBubble) {
  EXPECT_EQ(drawn(ScheduleKind::zb_h1, {2, 3}),
            "0 F0 F1 ...B0 W0 F2 B1 W1 B2 W2 \n"
            "1 ...F0 B0 F1 B1 W0 F2 B2 W1 W2 \n"
            "makespan 10, bubble 10.0 %, live activations 2 2\n");
}

TEST(ScheduleDrawing, ChunksHaveLetters) {
  EXPECT_EQ(drawn(ScheduleKind::interleaved, {1, 1, 2}, {1, 1, 1, 1}),
            "0 F0a F0b B0b B0a \n"
            "makespan 4, bubble 0.0 %, live activations 2\n");
}

TEST(ScheduleDrawing, IsCompressedToTheWidth) {
  // A unit of time has two columns if labels have two or three letters and a blank.
  EXPECT_EQ(drawn(ScheduleKind::one_f_one_b, {2, 2}, {1, 1, 1, 1}, 12),
            "0 F0F1..B0..B1\n"
            "1 ..F0B0F1B1..\n"
            "makespan 6, bubble 33.3 %, live activations 2 1\n");
  EXPECT_EQ(drawn(ScheduleKind::one_f_one_b, {2, 2}, {1, 1, 1, 1}, 6),
            "0 FF.B.B\n"
            "1 .FBFB.\n"
            "makespan 6, bubble 33.3 %, live activations 2 1\n");
}

TEST(ScheduleDrawing, RowsLineUp) {
  for (const int width : {20, 100, 1000}) {
    std::istringstream lines(drawn(ScheduleKind::interleaved, {11, 13, 3}, {1, 1.7, 1, 1}, width));
    std::string first, line;
    std::getline(lines, first);
    EXPECT_EQ(first.substr(0, 4), " 0 F");
    EXPECT_LE(first.size(), static_cast<std::size_t>(width) + 3);
    for (int stage = 1; stage < 11; ++stage) {
      std::getline(lines, line);
      EXPECT_EQ(line.size(), first.size());
    }
    EXPECT_EQ(line.substr(0, 3), "10 ");
  }
}

TEST(ScheduleDrawing, ANothingIsDrawn) {
  EXPECT_EQ(drawn(ScheduleKind::gpipe, {1, 1}, {0, 0, 0, 0}),
            "0 \nmakespan 0, bubble 0.0 %, live activations 1\n");
}

}  // namespace
}  // namespace choir
