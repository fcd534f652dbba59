"""The built-in stores: a shop that training knows (orders, marketing, users) and hotels that only test_unseen knows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from agentic.records import TableRef
from agentic.tables.card import load_tables
from agentic.tasks.definitions import builtin_metrics
from agentic.tasks.world import Dimension, World

CHANNELS = ("search", "social", "live", "email", "direct", "affiliate")
PROVINCES = ("Guangdong", "Zhejiang", "Jiangsu", "Sichuan", "Hubei", "Fujian", "Shandong", "Henan")
MONTHS = tuple(f"{year}-{month:02d}" for year in (2023, 2024) for month in range(1, 13))
QUARTERS = tuple(f"{year}Q{quarter}" for year in (2023, 2024) for quarter in range(1, 5))
DESCRIPTIONS = {"orders": "sales by month", "marketing": "advertising by month", "users": "users by month"}
_VARIABLES = {"orders": "o", "marketing": "k", "users": "u"}
_DIMENSIONS = (
    Dimension("channel", CHANNELS, False, "channel", "channels", "渠道", " for channel {}", "{} 渠道"),
    Dimension("province", PROVINCES, False, "province", "provinces", "省份", " in {}", "{} 省"),
    Dimension("quarter", QUARTERS, True, "quarter", "quarters", "季度", " in {}", "{} "),
    Dimension("month", MONTHS, True, "month", "months", "月份", " in {}", "{} "),
)

BRANDS = ("Alder House", "Blue Heron", "Copper Gate", "Driftwood", "Elmstead")
CITIES = ("Lisbon", "Tallinn", "Valencia", "Bergen", "Krakow", "Antwerp", "Split")
PERIODS = tuple(f"{year}/{month:02d}" for year in (2020, 2021) for month in range(1, 13))
HALVES = tuple(f"{year}-H{half}" for year in (2020, 2021) for half in (1, 2))
HOTEL_DESCRIPTIONS = {
    "stays": "hotel stays by period",
    "campaigns": "promotion by period",
    "loyalty": "guests by period",
}
_HOTEL_VARIABLES = {"stays": "s", "campaigns": "c", "loyalty": "g"}
_HOTEL_DIMENSIONS = (
    Dimension("brand", BRANDS, False, "brand", "brands", "品牌", " of the brand {}", "{} 品牌"),
    Dimension("city", CITIES, False, "city", "cities", "城市", " in {}", "{} 市"),
    Dimension("half", HALVES, True, "half-year", "half-years", "半年", " in {}", "{} "),
    Dimension("period", PERIODS, True, "period", "periods", "期间", " in {}", "{} "),
)


def quarter_of(month: str) -> str:
    return f"{month[:4]}Q{(int(month[5:]) + 2) // 3}"


def shop_world(folder: Path, base_dir: Path) -> World:
    """The store of the specification, read from the csv files in `folder` (below `base_dir`)."""
    return _world("", folder, base_dir, DESCRIPTIONS, _DIMENSIONS, "metrics", _VARIABLES)


def hotel_world(folder: Path, base_dir: Path) -> World:
    return _world("hotels", folder, base_dir, HOTEL_DESCRIPTIONS, _HOTEL_DIMENSIONS, "metrics_unseen", _HOTEL_VARIABLES)


def _world(
    name: str,
    folder: Path,
    base_dir: Path,
    descriptions: dict[str, str],
    dimensions: tuple[Dimension, ...],
    metrics: str,
    variables: dict[str, str],
) -> World:
    place = folder.relative_to(base_dir)
    refs = [TableRef(name=table, path=f"{place}/{table}.csv", description=said) for table, said in descriptions.items()]
    # Gold is computed on what the agent will read, not on what was in memory before it was written.
    frames = {table: read.frame for table, read in load_tables(refs, base_dir).items()}
    return World(name, refs, frames, dimensions, builtin_metrics(metrics), variables)


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
    # One person may open several accounts.
    users["new_accounts"] = users["new_users"] + rng.poisson(users["new_users"] * rng.uniform(0.1, 0.5, size))
    return {"orders": orders, "marketing": marketing, "users": users}


def build_hotels(seed: int) -> dict[str, pd.DataFrame]:
    """The three tables of the hotels; deterministic in `seed`."""
    rng = np.random.default_rng([seed, 1])
    keys = pd.MultiIndex.from_product([PERIODS, BRANDS, CITIES], names=["period", "brand", "city"]).to_frame(
        index=False
    )
    keys.insert(1, "half", [f"{period[:4]}-H{(int(period[5:]) + 5) // 6}" for period in keys["period"]])
    size = len(keys)
    nights_open = 30 * rng.integers(40, 160, size)
    sold = rng.binomial(nights_open, rng.uniform(0.35, 0.92, size))
    rate = keys["brand"].map(dict(zip(BRANDS, rng.uniform(70, 240, 5), strict=True))) * rng.normal(1, 0.1, size)
    bookings = np.maximum(20, np.round(sold / rng.uniform(1.6, 3.2, size))).astype("int64")
    cancelled = np.maximum(1, rng.binomial(bookings, rng.uniform(0.03, 0.2, size)))
    revenue = np.round(sold * rate, 2)
    stays = keys.assign(
        room_revenue=revenue,
        lost_revenue=np.round(revenue * rng.uniform(0.01, 0.15, size), 2),
        nights_sold=sold,
        nights_open=nights_open,
        bookings=bookings,
        cancelled=cancelled,
    )
    guests = np.round(sold * rng.uniform(1.2, 2.1, size)).astype("int64")
    loyalty = keys.assign(guests=guests, member_guests=rng.binomial(guests, rng.uniform(0.1, 0.6, size)))
    ads = stays.groupby(["period", "half", "brand"], as_index=False)["room_revenue"].sum()
    cost = np.round(ads["room_revenue"] * rng.uniform(0.02, 0.09, len(ads)), 2)
    views = np.round(cost * rng.uniform(3, 9, len(ads))).astype("int64")
    campaigns = ads.drop(columns="room_revenue").assign(cost=cost, page_views=views)
    return {"stays": stays, "campaigns": campaigns, "loyalty": loyalty}
