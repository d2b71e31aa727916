#include <gtest/gtest.h>

#include <map>

#include "src/comm/mpi/mpi_session.hpp"

namespace choir {
namespace {

EnvironmentLookup environment(std::map<std::string, std::string> values) {
  return [values = std::move(values)](const char* name) -> const char* {
    const auto found = values.find(name);
    return found == values.end() ? nullptr : found->second.c_str();
  };
}

TEST(Launcher, SaysHowManyRanksItStarted) {
  EXPECT_EQ(launcher_world_size(environment({})), std::nullopt);
  EXPECT_EQ(launcher_world_size(environment({{"OMPI_COMM_WORLD_SIZE", "4"}})), 4);
  EXPECT_EQ(launcher_world_size(environment({{"PMI_SIZE", "12"}})), 12);
  EXPECT_EQ(launcher_world_size(environment({{"PMI_SIZE", "twelve"}})), std::nullopt);
}

TEST(Launcher, SlurmCountsOnlyInsideAStep) {
  EXPECT_EQ(launcher_world_size(environment({{"SLURM_NTASKS", "8"}})), std::nullopt);
  EXPECT_EQ(launcher_world_size(environment({{"SLURM_NTASKS", "8"}, {"SLURM_STEP_ID", "0"}})), 8);
  // mpiexec inside an allocation starts one daemon per node as a step, and starts the ranks itself.
  EXPECT_EQ(launcher_world_size(
                environment({{"SLURM_STEP_NUM_TASKS", "2"}, {"OMPI_COMM_WORLD_SIZE", "1"}})),
            1);
}

TEST(Launcher, DiagnosesIndependentJobs) {
  const auto four = environment({{"PMI_SIZE", "4"}});
  EXPECT_EQ(wrong_launcher(4, four), std::nullopt);
  EXPECT_EQ(wrong_launcher(1, environment({})), std::nullopt);
  EXPECT_EQ(wrong_launcher(1, environment({{"PMI_SIZE", "1"}})), std::nullopt);
  const auto text = wrong_launcher(1, four);
  ASSERT_TRUE(text.has_value());
  EXPECT_NE(text->find("4 independent 1-rank jobs: wrong launcher"), std::string::npos);
}

}  // namespace
}  // namespace choir
