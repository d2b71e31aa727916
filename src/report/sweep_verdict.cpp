// Verdict: a layout must compute the same as one rank.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "choir/report/sweep.hpp"

namespace choir {
namespace {

using nlohmann::json;

constexpr double kMargin = 4;
constexpr double kSmall = 1e-3;  // of the largest gradient

double distance(const json& a, const json& b, double scale) {
  if (!a.is_number() || !b.is_number()) return std::numeric_limits<double>::infinity();
  const double apart = std::abs(a.get<double>() - b.get<double>());
  if (!std::isfinite(apart)) return std::numeric_limits<double>::infinity();
  return apart == 0 ? 0 : apart / scale;
}

std::string loss_text(const json& value) {
  const double is = value.is_number() ? value.get<double>() : std::nan("");
  return std::isfinite(is) ? fmt::format("{:.6g}", is) : "not finite";
}

double size_of(const json& value) {
  return value.is_number() ? std::abs(value.get<double>()) : 0;
}

void compare_steps(const json& mine, const json& reference, const char* name, double& worst,
                   std::string& at) {
  const std::size_t steps = std::min(mine.size(), reference.size());
  if (steps == 0) worst = std::numeric_limits<double>::infinity(), at = "no step to compare";
  for (std::size_t i = 0; i < steps; ++i) {
    const double off = distance(mine[i], reference[i], size_of(reference[i]));
    if (off <= worst) continue;
    worst = off;
    at = fmt::format("{} {} at step {}, of one rank {}", name, loss_text(mine[i]), i,
                     loss_text(reference[i]));
  }
}

void compare_tensors(const json& mine, const json& reference, double& worst, std::string& at) {
  double largest = 0;
  for (const auto& [name, norm] : reference.items()) largest = std::max(largest, size_of(norm));
  for (const auto& [name, norm] : reference.items()) {
    const json here = mine.contains(name) ? mine[name] : json();
    const double off = distance(here, norm, std::max(size_of(norm), kSmall * largest));
    if (off <= worst) continue;
    worst = off;
    at = fmt::format("the norm {} of {}, of one rank {}", loss_text(here), name, loss_text(norm));
  }
  for (const auto& [name, norm] : mine.items())
    if (!reference.contains(name))
      worst = std::numeric_limits<double>::infinity(), at = name + ": absent with one rank";
}

}  // namespace

Departure departure_of(const json& run, const json& reference) {
  Departure d;
  compare_steps(run.at("first_losses"), reference.at("first_losses"), "the loss", d.loss,
                d.loss_at);
  compare_steps(run.at("first_norms"), reference.at("first_norms"), "the norm of the gradient",
                d.norm, d.norm_at);
  compare_tensors(run.at("first_gradients"), reference.at("first_gradients"), d.gradient,
                  d.gradient_at);
  return d;
}

Departure allowed_departure(const json& reference, const std::vector<json>& moved) {
  Departure most;
  for (const json& run : moved) most = worst_of(most, departure_of(run, reference));
  const double rounding = std::ldexp(1, reference.at("precision") == "fp64" ? -53 : -24);
  for (double* value : {&most.loss, &most.norm, &most.gradient})
    *value = std::max(kMargin * *value, rounding);
  return most;
}

Departure worst_of(const Departure& a, const Departure& b) {
  Departure worst = a;
  if (b.loss > a.loss) worst.loss = b.loss, worst.loss_at = b.loss_at;
  if (b.norm > a.norm) worst.norm = b.norm, worst.norm_at = b.norm_at;
  if (b.gradient > a.gradient) worst.gradient = b.gradient, worst.gradient_at = b.gradient_at;
  return worst;
}

std::vector<std::string> complaints_about(const Departure& departure, const Departure& allowed) {
  std::vector<std::string> list;
  const auto see = [&](double off, double most, const std::string& at) {
    if (off > most) list.push_back(fmt::format("{} ({:.1e} off, allowed {:.1e})", at, off, most));
  };
  // If the reference is not finite, nothing is allowed.
  const auto bound = [](double most) { return std::isfinite(most) ? most : 0; };
  see(departure.loss, bound(allowed.loss), departure.loss_at);
  see(departure.norm, bound(allowed.norm), departure.norm_at);
  see(departure.gradient, bound(allowed.gradient), departure.gradient_at);
  return list;
}

}  // namespace choir
