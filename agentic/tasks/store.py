"""The built-in operations store: orders, marketing and users by month, channel and province."""

from __future__ import annotations

import numpy as np
import pandas as pd

CHANNELS = ["search", "social", "live", "email", "direct", "affiliate"]
PROVINCES = ["Guangdong", "Zhejiang", "Jiangsu", "Sichuan", "Hubei", "Fujian", "Shandong", "Henan"]
MONTHS = [f"{year}-{month:02d}" for year in (2023, 2024) for month in range(1, 13)]
QUARTERS = [f"{year}Q{quarter}" for year in (2023, 2024) for quarter in range(1, 5)]
DESCRIPTIONS = {"orders": "sales by month", "marketing": "advertising by month", "users": "users by month"}


def quarter_of(month: str) -> str:
    return f"{month[:4]}Q{(int(month[5:]) + 2) // 3}"


def build_store(seed: int) -> dict[str, pd.DataFrame]:
    """The three tables; deterministic in `seed`. Sums over any slice are positive, so every ratio is defined."""
    rng = np.random.default_rng(seed)
    keys = pd.MultiIndex.from_product([MONTHS, CHANNELS, PROVINCES], names=["month", "channel", "province"]).to_frame(
        index=False
    )
    keys.insert(1, "quarter", keys["month"].map(quarter_of))
    size = len(keys)
    month_index = keys["month"].map({month: index for index, month in enumerate(MONTHS)}).to_numpy()
    # Level by channel and province, growth by channel, season by month, noise by cell.
    level = keys["channel"].map(dict(zip(CHANNELS, rng.uniform(0.5, 2.0, 6), strict=True))) * keys["province"].map(
        dict(zip(PROVINCES, rng.uniform(0.5, 2.0, 8), strict=True))
    )
    growth = keys["channel"].map(dict(zip(CHANNELS, rng.uniform(-0.01, 0.03, 6), strict=True))).to_numpy()
    season = 1 + 0.15 * np.sin(2 * np.pi * month_index / 12 + rng.uniform(0, 6))
    orders_count = np.maximum(5, rng.poisson(220 * level * season * (1 + growth) ** month_index))
    price = keys["channel"].map(dict(zip(CHANNELS, rng.uniform(60, 180, 6), strict=True))) * rng.normal(1, 0.08, size)
    gmv = np.round(orders_count * price, 2)
    refund_share = np.clip(
        keys["channel"].map(dict(zip(CHANNELS, rng.uniform(0.02, 0.12, 6), strict=True))) * rng.normal(1, 0.25, size),
        0.004,
        0.4,
    )
    refund_orders = np.maximum(1, rng.binomial(orders_count, np.clip(refund_share * 1.2, 0, 0.5)))
    orders = keys.assign(
        gmv=gmv, refund_amount=np.round(gmv * refund_share, 2), orders_count=orders_count, refund_orders=refund_orders
    )
    active = np.maximum(50, rng.poisson(900 * level * season))
    users = keys.assign(
        active_users=active, new_users=np.maximum(3, rng.binomial(active, rng.uniform(0.08, 0.3, size)))
    )
    ads = orders.groupby(["month", "quarter", "channel"], as_index=False)["gmv"].sum()
    spend = np.round(ads["gmv"] * rng.uniform(0.06, 0.22, len(ads)), 2)
    impressions = np.round(spend * rng.uniform(25, 60, len(ads))).astype("int64")
    marketing = ads.drop(columns="gmv").assign(
        spend=spend, impressions=impressions, clicks=rng.binomial(impressions, rng.uniform(0.01, 0.05, len(ads)))
    )
    return {"orders": orders, "marketing": marketing, "users": users}
