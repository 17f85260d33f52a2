// Quantities with units: a time cannot be added to a number of bytes.
//
// The base units are SI seconds, bytes, FLOP and US dollars. GiB is 2^30 bytes, GB is 10^9 bytes.
// At every border (TOML, JSON, HDF5, --help) the unit stands in the name: `iteration_time_s`.
#pragma once

#include <cmath>
#include <compare>
#include <concepts>
#include <cstdint>

namespace sailor {

/// A double that carries a unit. `Tag` names the unit; only equal units add and compare.
template <class Tag>
class Quantity {
 public:
  constexpr Quantity() = default;
  constexpr explicit Quantity(double value) : value_(value) {}

  /// The bare number, in the base unit of `Tag`.
  [[nodiscard]] constexpr double value() const { return value_; }

  constexpr Quantity& operator+=(Quantity other) {
    value_ += other.value_;
    return *this;
  }
  constexpr Quantity& operator-=(Quantity other) {
    value_ -= other.value_;
    return *this;
  }
  constexpr Quantity& operator*=(double factor) {
    value_ *= factor;
    return *this;
  }
  constexpr Quantity& operator/=(double divisor) {
    value_ /= divisor;
    return *this;
  }

  friend constexpr Quantity operator+(Quantity a, Quantity b) { return a += b; }
  friend constexpr Quantity operator-(Quantity a, Quantity b) { return a -= b; }
  friend constexpr Quantity operator-(Quantity a) { return Quantity(-a.value_); }
  friend constexpr Quantity operator*(Quantity a, double factor) { return a *= factor; }
  friend constexpr Quantity operator*(double factor, Quantity a) { return a *= factor; }
  friend constexpr Quantity operator/(Quantity a, double divisor) { return a /= divisor; }
  /// The ratio of two like quantities is a bare number.
  friend constexpr double operator/(Quantity a, Quantity b) { return a.value_ / b.value_; }
  friend constexpr auto operator<=>(Quantity, Quantity) = default;

 private:
  double value_ = 0.0;
};

using Seconds = Quantity<struct SecondsTag>;
using Bytes = Quantity<struct BytesTag>;  // exact up to 2^53, far above any memory
using Flop = Quantity<struct FlopTag>;
using Usd = Quantity<struct UsdTag>;
using BytesPerSecond = Quantity<struct BytesPerSecondTag>;
using FlopPerSecond = Quantity<struct FlopPerSecondTag>;
using UsdPerHour = Quantity<struct UsdPerHourTag>;

constexpr Seconds operator/(Bytes amount, BytesPerSecond rate) { return Seconds(amount.value() / rate.value()); }
constexpr Seconds operator/(Flop work, FlopPerSecond rate) { return Seconds(work.value() / rate.value()); }
constexpr BytesPerSecond operator/(Bytes amount, Seconds time) { return BytesPerSecond(amount.value() / time.value()); }
constexpr FlopPerSecond operator/(Flop work, Seconds time) { return FlopPerSecond(work.value() / time.value()); }
constexpr Usd operator*(UsdPerHour price, Seconds time) { return Usd(price.value() * time.value() / 3600.0); }

inline constexpr Bytes kib{1024.0};
inline constexpr Bytes mib{1024.0 * 1024.0};
inline constexpr Bytes gib{1024.0 * 1024.0 * 1024.0};
inline constexpr Bytes gigabyte{1e9};

}  // namespace sailor
