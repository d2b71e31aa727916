#include "choir/device/cpu_model.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>

#include "choir/core/text.hpp"

namespace choir {
namespace {

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

}  // namespace

CpuModel parse_cpuinfo(const std::string& text) {
  CpuModel model;
  std::string implementer, part;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    const std::string_view whole = line;
    const std::string key(trim(whole.substr(0, colon))), value(trim(whole.substr(colon + 1)));
    if ((key == "model name" || key == "cpu") && model.name.empty()) model.name = value;
    if (key == "CPU implementer") implementer = value;
    if (key == "CPU part") part = value;
    if (key != "cpu MHz" && key != "clock") continue;
    const double mhz = std::strtod(value.c_str(), nullptr);
    if (mhz <= 0) continue;
    model.low = model.low > 0 ? std::min(model.low, mhz) : mhz;
    model.high = std::max(model.high, mhz);
  }
  if (model.name.empty() && !part.empty())
    model.name = fmt::format("Arm implementer {} part {}", implementer, part);
  return model;
}

CpuModel cpu_model() {
  std::ifstream file("/proc/cpuinfo");
  CpuModel model = parse_cpuinfo({std::istreambuf_iterator<char>(file), {}});
  const std::string folder = "/sys/devices/system/cpu/cpu0/cpufreq/";
  constexpr double kPerMhz = 1000;  // cpufreq reports kHz
  model.most = std::strtod(first_line(folder + "cpuinfo_max_freq").c_str(), nullptr) / kPerMhz;
  model.governor = first_line(folder + "scaling_governor");
  return model;
}

std::string describe_clocks(const std::vector<CpuModel>& hosts) {
  double low = 0, high = 0, most = 0;
  std::set<std::string> governors;
  for (const CpuModel& host : hosts) {
    if (host.low > 0) low = low > 0 ? std::min(low, host.low) : host.low;
    high = std::max(high, host.high);
    most = std::max(most, host.most);
    if (!host.governor.empty()) governors.insert(host.governor);
  }
  std::vector<std::string> words;
  if (high - low >= 1)
    words.push_back(fmt::format("{:.0f} to {:.0f} MHz then", low, high));
  else if (high > 0)
    words.push_back(fmt::format("{:.0f} MHz then", high));
  if (most > 0) words.push_back(fmt::format("at most {:.0f} MHz", most));
  if (!governors.empty())
    words.push_back("governor " + join({governors.begin(), governors.end()}, " or "));
  return join(words, ", ");
}

}  // namespace choir
