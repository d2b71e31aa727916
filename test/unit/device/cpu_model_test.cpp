// Tests with the text of /proc/cpuinfo on several kinds of processors.
#include "src/device/cpu_device.hpp"

#include <gtest/gtest.h>

#include <fstream>

namespace choir {
namespace {

TEST(CpuModel, NameAndClocksOfX86) {
  const CpuModel cpu = parse_cpuinfo(
      "processor\t: 0\nmodel\t\t: 143\nmodel name\t: Intel(R) Xeon(R) Platinum 8480+\n"
      "cpu MHz\t\t: 2000.000\ncpu cores\t: 56\n\n"
      "processor\t: 1\nmodel name\t: Intel(R) Xeon(R) Platinum 8480+\ncpu MHz\t\t: 3799.5\n");
  EXPECT_EQ(cpu.name, "Intel(R) Xeon(R) Platinum 8480+");
  EXPECT_EQ(cpu.low, 2000);
  EXPECT_EQ(cpu.high, 3799.5);
}

TEST(CpuModel, PowerAndArm) {
  const CpuModel power = parse_cpuinfo(
      "processor\t: 0\ncpu\t\t: POWER9, altivec supported\n"
      "clock\t\t: 3450.000000MHz\n");
  EXPECT_EQ(power.name, "POWER9, altivec supported");
  EXPECT_EQ(power.high, 3450);
  const CpuModel arm = parse_cpuinfo(
      "processor\t: 0\nCPU implementer\t: 0x41\nCPU variant\t: 0x0\nCPU part\t: 0xd4f\n");
  EXPECT_EQ(arm.name, "Arm implementer 0x41 part 0xd4f");
  EXPECT_EQ(arm.low, 0);
  EXPECT_EQ(parse_cpuinfo("").name, "");
}

TEST(CpuModel, ClocksOfAllHosts) {
  EXPECT_EQ(describe_clocks({{.name = "a"}}), "");
  EXPECT_EQ(describe_clocks({{.low = 2596.1, .high = 2596.1}}), "2596 MHz then");
  EXPECT_EQ(describe_clocks({{.low = 2400, .high = 2500, .most = 3700, .governor = "powersave"},
                             {},
                             {.low = 2300, .high = 2450, .most = 3700, .governor = "performance"}}),
            "2300 to 2500 MHz then, at most 3700 MHz, governor performance or powersave");
}

TEST(CpuModel, ThisHostIsWhatItsFileSays) {
  std::ifstream file("/proc/cpuinfo");
  std::string line, expected;
  while (std::getline(file, line))
    if (line.starts_with("model name")) expected = line.substr(line.find(": ") + 2);
  if (expected.empty()) GTEST_SKIP() << "no model name in /proc/cpuinfo";
  EXPECT_EQ(cpu_model().name, expected);
}

}  // namespace
}  // namespace choir
