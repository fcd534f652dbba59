"""Vocabulary of the generated tables: column names, category values, labels. Written for this project.

No table here stands for a real data set: names are drawn at random and rendered in many spellings, so that a model
learns to copy what the card says instead of remembering names.
"""

from __future__ import annotations

NUMBERS_EN = """
price|unit price|list price|sales|net sales|revenue|profit|gross margin|discount|quantity|units sold|age|weight|height|length|width|
thickness|distance|duration|speed|top speed|temperature|high temp|low temp|humidity|air pressure|rain|snow depth|wind|gust|population|
density|income per head|expectancy|score|final score|rating|votes|budget|cost|tax|fee|balance|income|salary|bonus|overtime|hours|
minutes|delay|waiting time|late minutes|seats|crew|power|torque|fuel use|cargo|payload|calories|protein|fat|sugar|fiber|salt|goals|
assists|points|wins|losses|draws|attendance|capacity|area|floor space|rooms|floors|rent|mileage|clicks|impressions|visits|sessions|
page views|signups|orders|returns|refunds|stock|reorder level|shipping fee|births|deaths|cases|tests|beds|patients|dose|pulse|glucose|
acidity|alcohol|residue|altitude|elevation|latitude|longitude|magnitude|emissions|energy|output|consumption|production|yield|harvest|
exports|imports|jobless rate|inflation|interest|loan amount|credit limit|term|open|high|low|close|volume|market value|dividend|pages|
downloads|likes|comments|shares|words|tuition|enrollment|students|teachers|grade points|absences|share of total|growth|index|level|
ratio|total|amount|value|count|measure|reading|depth|diameter|petals|wingspan|beak size|tail length|body weight|lifespan|offspring|
retail jobs|factory jobs|public jobs|mining|construction|trade|services|first quarter|second half|baseline|follow up|change|error
"""

NUMBERS_ZH = """
销售额|利润|成本|单价|数量|库存|折扣|退款|运费|年龄|身高|体重|工资|奖金|工时|评分|票数|预算|面积|租金|房间数|温度|湿度|风速|降雨量|人口|
产量|用电量|排放量|点击量|曝光量|访问量|订单量|下载量|考试成绩|学生人数|缺勤天数|里程|油耗|速度|距离|时长|延误分钟|血压|心率|剂量|床位数|营业额|
毛利率|市值|股价|成交量|增长率|满意度|投诉数|会员数|客单价|复购率
"""

CATEGORIES_EN: dict[str, str] = {
    "region": "North|South|East|West|Central|Northeast",
    "zone": "A|B|C|D|E",
    "city": "Oslo|Lima|Cairo|Quito|Turin|Leeds|Osaka|Perth",
    "country": "Norway|Peru|Egypt|Japan|Chile|Kenya|Italy|Canada",
    "product": "lamp|desk|chair|sofa|shelf|stool|mirror",
    "category": "Food|Toys|Books|Garden|Sports|Music",
    "sub category": "Pens|Folders|Clips|Labels|Boards|Cables|Tables",
    "customer group": "Retail|Wholesale|Online|Export",
    "channel": "web|store|phone|partner|app",
    "department": "Finance|Legal|Sales|Support|Research|Design",
    "gender": "female|male",
    "color": "red|blue|green|black|white|silver",
    "size": "XS|S|M|L|XL",
    "grade": "A+|A|B|C|D",
    "status": "open|closed|pending|cancelled|shipped",
    "kind": "alpha|beta|gamma|delta",
    "brand": "Velto|Norda|Kimra|Sunpeak|Oxley|Tarno",
    "maker": "ACME|ZENCO|ORION|VULCAN|HELIX",
    "model": "X100|X200|Z-5|Z-7|Pro|Lite",
    "animal": "otter|heron|lynx|badger|newt|finch",
    "site": "Ridge|Harbor|Dune|Marsh|Cove",
    "origin": "BRN|TLV|KUL|OPO|GOT|YYC",
    "to": "ARN|DUB|EZE|NBO|SOF",
    "operator": "QX|7R|LN|ZB|4M",
    "weekday": "Mon|Tue|Wed|Thu|Fri|Sat|Sun",
    "season": "spring|summer|autumn|winter",
    "sky": "clear|cloudy|fog|storm|hail",
    "team": "Hawks|Bears|Comets|Pirates|Royals|Wolves",
    "position": "guard|center|forward|keeper|wing",
    "genre": "Drama|Comedy|Horror|Sci-Fi|Romance|Western",
    "language": "English|Spanish|Hindi|French|Arabic",
    "payment": "card|cash|transfer|voucher",
    "plan": "free|basic|plus|enterprise",
    "device": "phone|tablet|laptop|tv",
    "fuel": "petrol|diesel|hybrid|electric|gas",
    "gearbox": "manual|automatic|cvt",
    "continent": "Africa|Europe|Oceania|South America|North America",
    "state": "Ohio|Texas|Maine|Utah|Iowa|Nevada",
    "district": "Old Town|Riverside|Hillcrest|Docklands|Mill Lane",
    "school": "Lincoln High|Oak Park|St. Mary's|Westfield",
    "major": "Physics|History|Biology|Law|Art",
    "ward": "ICU|Maternity|Surgery|Oncology",
    "treatment": "placebo|low dose|high dose",
    "blood type": "O|A|B|AB",
    "ticker": "QLD|MNRV|TPX|BYTE|SOLR",
    "sector": "Energy|Utilities|Materials|Health Care|Real Estate",
    "material": "oak|steel|glass|cotton|nylon",
    "supplier": "Baker & Sons|Delta Ltd|Nord AB|Kato Co.",
    "ship method": "Express|Ground|Air Freight|Same Day",
    "priority": "low|medium|high|urgent",
    "smoker": "yes|no",
    "medal": "gold|silver|bronze",
    "shift": "day|night|evening",
    "meal": "Lunch|Dinner|Breakfast",
    "browser": "Falcon 3|Falcon 4|Panda 12|Lyra 7.1",
    "event": "sprint|relay|hurdles|marathon",
    "power source": "Coal Plants|Nuclear|Wind Farms|Hydro|Biomass",
    "crime": "theft|fraud|arson|assault",
    "race": "group 1|group 2|group 3|other",
    "time zone": "America/Lima|Europe/Oslo|Asia/Tokyo|Africa/Cairo",
}

CATEGORIES_ZH: dict[str, str] = {
    "地区": "华东|华南|华北|西南|东北",
    "城市": "杭州|成都|武汉|西安|青岛|厦门",
    "门店": "青石店|柳河店|东湖店|南山店",
    "产品": "台灯|书桌|沙发|椅子|书架",
    "类别": "食品|玩具|图书|园艺|运动",
    "渠道": "线上|门店|电话|代理",
    "部门": "财务|法务|销售|客服|研发",
    "性别": "男|女",
    "颜色": "红色|蓝色|绿色|黑色",
    "状态": "已完成|待处理|已取消|已发货",
    "品牌": "远山|晨光|海岳|新禾",
    "季节": "春|夏|秋|冬",
    "学校": "一中|二中|实验中学|外国语学校",
    "职位": "经理|工程师|助理|专员",
    "支付方式": "现金|刷卡|转账|扫码",
    "等级": "普通|银卡|金卡|钻石",
}

UNITS = ["(mm)", "(kg)", "(%)", "($)", "(km)", "[m/s]", "(g)", "(USD)", "(hours)", "(10^3)"]
SUFFIXES = ["mm", "kg", "usd", "pct", "km", "total", "avg", "per capita", "in thousands", "2019", "2021", "g", "x", "score", "id no"]
PREFIXES = ["total", "avg", "num", "max", "min", "net", "gross", "n", "pct", "daily", "annual", "current"]
SYLLABLES = "ba be bo da de di do fa fe ga go ha he ka ke ki ko la le li lo ma me mi mo na ne ni no pa pe po ra re ri ro sa se so ta te ti to va ve vi vo za zo".split()
LABELS_EN = ["name", "customer", "player", "title", "employee", "station", "item", "company", "student", "hotel", "airport name", "movie", "project", "full name"]
LABELS_ZH = ["姓名", "名称", "客户", "商品名称", "员工"]
SURNAMES_ZH = "赵钱孙李周吴郑王冯陈褚卫蒋沈韩杨朱秦尤许"
GIVEN_ZH = "伟芳娜敏静丽强磊军洋勇艳杰娟涛明超秀霞平刚桂英"


def split(text: str) -> list[str]:
    return [word.strip() for word in text.replace("\n", "").split("|") if word.strip()]
