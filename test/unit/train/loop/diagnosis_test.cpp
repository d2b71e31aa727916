#include "src/train/loop/diagnosis.hpp"

#include <gtest/gtest.h>
#include <omp.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "test/support/has.hpp"

namespace choir {
namespace {

using test::has;

/// Ten steps of 1 s on two even ranks: the given shares; the rest is "other".
RunTimes steps(double data, double forward, double backward, double comm) {
  RunTimes times;
  times.phases.steps = 10;
  times.phases.seconds = {10 * data,
                          10 * forward,
                          10 * backward,
                          10 * comm,
                          0,
                          10 * (1 - data - forward - backward - comm)};
  times.own = {1 - comm, 1 - comm};
  times.outside = {0, 0};
  times.hosts = {"a", "b"};
  return times;
}

TEST(Diagnosis, NamesWhatIsSlow) {
  EXPECT_EQ(diagnosis(steps(0.01, 0.3, 0.6, 0.05)),
            "kernels: forward and backward take 90 % of a step; nothing else stands out");
  EXPECT_TRUE(has(diagnosis(steps(0.4, 0.2, 0.3, 0.05)), "slow data: a step waits 40 %"));
  EXPECT_TRUE(has(diagnosis(steps(0.0, 0.2, 0.3, 0.45)), "slow network: communication takes 45 %"));
  RunTimes between = steps(0.01, 0.3, 0.6, 0.05);
  between.between_steps = 0.3;
  EXPECT_TRUE(has(diagnosis(between), "slow between steps: 30 %"));
  EXPECT_EQ(diagnosis(RunTimes()), "");
}

// For rank 0 the time of a slow rank, whatever its cause, looks like communication.
TEST(Diagnosis, ASlowRankIsNoSlowNetwork) {
  RunTimes times = steps(0, 0.1, 0.1, 0.79);
  times.own = {0.2, 0.95};
  times.outside = {0, 0.75};
  const std::string text = diagnosis(times);
  EXPECT_TRUE(has(text, "slow rank: rank 1 on b takes 4.75 times as long"));
  EXPECT_TRUE(has(text, "750 ms of its time outside forward and backward"));
  // A rank that is only slightly slower is not to blame.
  times.own = {0.2, 0.23};
  EXPECT_TRUE(has(diagnosis(times), "slow network"));
}

// Ten steps that take 1.5 times as long on one rank show nothing if they vary as much: sqrt(2 x
// 0.3^2 / 9) = 0.14 s is the error of a difference of means.
TEST(Diagnosis, ARankIsSlowByMoreThanTheSpreadOfItsSteps) {
  RunTimes times = steps(0.01, 0.3, 0.6, 0.05);
  times.own = {0.8, 1.2};
  times.deviation = {0.3, 0.3};
  EXPECT_TRUE(has(diagnosis(times), "kernels: "));
  times.deviation = {0.05, 0.05};
  EXPECT_TRUE(has(diagnosis(times), "slow rank: rank 1 on b"));
  times.phases.steps = 6;
  EXPECT_EQ(diagnosis(times), "6 steps are too few to tell what is slow");
}

TEST(Diagnosis, CoresThatOthersUse) {
  RunTimes times = steps(0.01, 0.3, 0.6, 0.05);
  times.own = {0.5, 0.95};
  times.cores = {{.seconds = 10, .waiting = 0.1, .stolen = 0.1, .switches = 3},
                 {.seconds = 10, .waiting = 4, .stolen = 0.5, .switches = 812}};
  EXPECT_EQ(diagnosis(times),
            "busy cores: rank 1 (host b): its threads waited 40 % of the time for a CPU core, "
            "and a hypervisor took 5 % of the time; other processes are using this machine");
  times.crowded = {"", "4 ranks share 2 cores: steps are slow"};
  EXPECT_TRUE(diagnosis(times).ends_with("took 5 % of the time; 4 ranks share 2 cores"))
      << diagnosis(times);
  times.cores[1].stolen = 0.04;
  EXPECT_FALSE(has(diagnosis(times), "hypervisor")) << diagnosis(times);
  times.cores[1].stolen = 0.5;
  // A rank that is also slow without that time is slow.
  times.own = {0.2, 0.95};
  EXPECT_TRUE(has(diagnosis(times), "slow rank: rank 1 on b takes 2.67 times"));
  times.cores[1].waiting = 0;
  times.own = {0.9, 0.95};
  EXPECT_TRUE(has(diagnosis(times), "kernels: "));
  EXPECT_EQ(busy_cores({}, {}), "");
}

TEST(CoreWatch, ReadsWhatTheSystemTells) {
  namespace fs = std::filesystem;
  const fs::path tasks = fs::path(testing::TempDir()) / "choir_core_watch";
  fs::create_directories(tasks / "7");
  fs::create_directories(tasks / "8");
  const auto write = [](const fs::path& path, const std::string& text) {
    std::ofstream(path) << text;
  };
  // Threads wait 1 s and 3 s longer; every core loses 50 more ticks to the hypervisor.
  const auto cores = [&](int ticks) {
    std::string text = "cpu  0 0 0 0 0 0 0 0\n";
    for (int core = 0; core < 1024; ++core)
      text += "cpu" + std::to_string(core) + " 1 2 3 4 5 6 7 " + std::to_string(ticks) + " 0 0\n";
    write(tasks / "stat", text + "intr 1\n");
  };
  write(tasks / "7" / "schedstat", "5 1000000000 9\n");
  write(tasks / "8" / "schedstat", "5 2000000000 9\n");
  cores(10);
  const std::string tasks_path = tasks.string(), cores_path = (tasks / "stat").string();
  CoreWatch watch({7, 8}, tasks_path.c_str(), cores_path.c_str());
  write(tasks / "7" / "schedstat", "5 2000000000 9\n");
  write(tasks / "8" / "schedstat", "5 5000000000 9\n");
  cores(60);
  const CoreShortage found = watch.look();
  EXPECT_DOUBLE_EQ(found.waiting, 3);
  EXPECT_DOUBLE_EQ(found.stolen, 50.0 / static_cast<double>(sysconf(_SC_CLK_TCK)));
  EXPECT_GE(found.switches, 0);
  EXPECT_GT(found.seconds, 0);
  EXPECT_EQ(watch.look().waiting, 0);
  fs::remove_all(tasks);
  // If the files do not exist, no shortage is reported.
  CoreWatch blind({7}, tasks_path.c_str(), cores_path.c_str());
  EXPECT_EQ(blind.look().share(), 0);
  EXPECT_EQ(computing_threads().size(), static_cast<std::size_t>(omp_get_max_threads()));
}

TEST(Diagnosis, OfASingleRank) {
  RunTimes times = steps(0.01, 0.3, 0.6, 0);
  times.own = {1};
  times.outside = {0};
  times.hosts = {"a"};
  EXPECT_TRUE(has(diagnosis(times), "kernels: "));
}

}  // namespace
}  // namespace choir
