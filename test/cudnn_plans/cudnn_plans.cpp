// cudnn_plans DEVICE.json < CASES: builds cuDNN's attention plans for a device that is only
// described. One case a line, "KEY=VALUE ..." with
//   B batch, H heads, K key/value heads (H), D head width, T queries, S keys (T), causal (1),
//   f16 (0: bf16), bias (0), row (stride of its rows, S), per_head and per_sample (1),
//   pass forward|backward|fast (fast: backward that may differ in its last bits)
//   refused WORDS (cuDNN or our rules must refuse, with these words)
// Operands lie in one packed [B, T, (H + 2K) D] tensor; with S > T, keys and values in a cache.
// Prints a line for every case and, last, "N passed, N failed".
#include <chrono>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <sstream>

#include "kernels/attention/cudnn/attention_cudnn_graph.hpp"

namespace choir::cudnn {
namespace {

struct Case {
  std::map<std::string, std::string> given;
  std::int64_t number(const std::string& key, std::int64_t otherwise) const {
    const auto found = given.find(key);
    return found == given.end() ? otherwise : std::stoll(found->second);
  }
  std::string text(const std::string& key) const {
    const auto found = given.find(key);
    return found == given.end() ? "" : found->second;
  }
};

Case parse(const std::string& line) {
  Case c;
  std::istringstream words(line);
  for (std::string word; words >> word;) {
    const auto equals = word.find('=');
    CHOIR_CHECK(equals != std::string::npos, "'{}' is not KEY=VALUE", word);
    c.given[word.substr(0, equals)] = word.substr(equals + 1);
  }
  return c;
}

ops::AttentionProblem problem_of(const Case& c) {
  const std::int64_t heads = c.number("H", 1), tokens = c.number("T", 64);
  const std::int64_t width = c.number("D", 64);
  return {.batch = c.number("B", 1),
          .heads = heads,
          .kv_heads = c.number("K", heads),
          .head_width = width,
          .queries = tokens,
          .keys = c.number("S", tokens),
          .causal = c.number("causal", 1) != 0,
          .scale = 0.125,
          .dtype = c.number("f16", 0) != 0 ? DType::f16 : DType::bf16};
}

AttentionLayout layout_of(const Case& c, const ops::AttentionProblem& p) {
  const std::int64_t packed = (p.heads + 2 * p.kv_heads) * p.head_width;
  const bool cached = p.keys != p.queries;
  const std::int64_t room = 2 * p.keys;  // of a cache that is not full
  const std::int64_t kv_row = p.kv_heads * p.head_width;
  AttentionLayout layout;
  layout.backward = c.text("pass") != "forward";
  layout.deterministic = c.text("pass") != "fast";
  layout.q = layout.d_q = {p.queries * packed, packed};
  layout.k = cached ? AttentionLayout::Strides{room * kv_row, kv_row} : layout.q;
  layout.v = layout.d_k = layout.d_v = layout.k;
  layout.out = layout.d_out = {p.queries * p.heads * p.head_width, p.heads * p.head_width};
  if (c.number("bias", 0) == 0) return layout;
  const std::int64_t row = c.number("row", p.keys), head = p.queries * row;
  layout.bias = {.present = true,
                 .gradient = layout.backward && c.number("gradient", 0) != 0,
                 .batch = c.number("per_sample", 1) != 0 ? p.heads * head : 0,
                 .head = c.number("per_head", 1) != 0 ? head : 0,
                 .row = row};
  return layout;
}

/// The bytes that the plan needs and those that are planned for it; throws Refused.
std::pair<std::int64_t, std::int64_t> build(const Case& c, const Descriptor& device) {
  const ops::AttentionProblem p = problem_of(c);
  const AttentionLayout layout = layout_of(c, p);
  if (const std::string outside = attention_outside_rules(p, layout); !outside.empty())
    throw Refused(outside);
  Graph graph =
      layout.backward ? attention_backward_graph(p, layout) : attention_forward_graph(p, layout);
  const Plan plan = std::move(graph).compile({.properties = &device});
  return {plan.workspace_bytes() + d_q_sum_bytes(p, layout) + kWorkspaceBoundary,
          attention_workspace(p, layout)};
}

bool run(const std::string& line, const Descriptor& device) {
  const auto start = std::chrono::steady_clock::now();
  std::string said, refused;
  bool good = true;
  try {
    const Case c = parse(line);
    refused = c.text("refused");
    const auto [wanted, planned] = build(c, device);
    said = fmt::format("workspace {} of {} planned", wanted, planned);
    good = refused.empty() && wanted <= planned;
  } catch (const Refused& error) {
    said = error.what();
    good = !refused.empty() && said.find(refused) != std::string::npos;
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  fmt::print("{} {}: {} ({:.2f} s)\n", good ? "ok" : "not ok", line, said, seconds.count());
  return good;
}

int run_all(const char* path) {
  std::ifstream file(path);
  const std::string json{std::istreambuf_iterator<char>(file), {}};
  CHOIR_CHECK(!json.empty(), "cannot read '{}'", path);
  const Descriptor device = device_from_json(json);
  int passed = 0, failed = 0;
  for (std::string line; std::getline(std::cin, line);)
    if (!line.empty()) ++(run(line, device) ? passed : failed);
  fmt::print("{} passed, {} failed\n", passed, failed);
  return failed == 0 && passed > 0 ? 0 : 1;
}

}  // namespace
}  // namespace choir::cudnn

int main(int count, char** arguments) {
  if (count != 2) {
    fmt::print(stderr, "usage: cudnn_plans DEVICE.json < CASES\n");
    return 2;
  }
  try {
    return choir::cudnn::run_all(arguments[1]);
  } catch (const std::exception& error) {
    fmt::print("not ok {}: {}\n0 passed, 1 failed\n", arguments[1], choir::describe(error));
    return 1;
  }
}
